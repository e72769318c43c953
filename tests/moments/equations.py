"""TAGI's equations for two kinds of nets, written out layer by layer and without the library.

Goulet, Nguyen & Amiri (2021) and, for images, Nguyen & Goulet (2021). Pre-activations N(m, s),
activations N(a, v), innovations `δ = Δmean / variance` and `η = Δvariance / variance²`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

Moments = tuple[Tensor, Tensor]
Belief = dict[str, Moments]
"""Mean and variance of each parameter."""


def cdf(x: Tensor) -> Tensor:
    """Φ."""
    return torch.distributions.Normal(0.0, 1.0).cdf(x)


def pdf(x: Tensor) -> Tensor:
    """ϕ."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


class Layer(Protocol):
    """One layer: forwards it keeps what it needs, backwards it gives what was learned."""

    def forward(self, a: Tensor, v: Tensor) -> Moments: ...

    def backward(self, delta: Tensor, eta: Tensor) -> Moments: ...


@dataclass
class Weights:
    """Parameters of a layer, and their innovations after the way back."""

    belief: Belief
    learned: Belief = field(default_factory=dict)

    def updated(self) -> Belief:
        """`w + v δ` and `v + v² η`, without any bounds."""
        return {
            k: (m + v * self.learned[k][0], v + v * v * self.learned[k][1])
            for k, (m, v) in self.belief.items()
        }


@dataclass
class Dense(Weights):
    """`z = W a + b`."""

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        self.a = a
        (w, sw), (b, sb) = self.belief["weight"], self.belief["bias"]
        m = torch.einsum("ij,nj->ni", w, a) + b
        s = torch.einsum("ij,nj->ni", sw, a**2 + v) + torch.einsum("ij,nj->ni", w**2, v) + sb
        return m, s

    def backward(self, delta: Tensor, eta: Tensor) -> Moments:
        w = self.belief["weight"][0]
        self.learned = {
            "weight": (
                torch.einsum("ni,nj->ij", delta, self.a),
                torch.einsum("ni,nj->ij", eta, self.a**2),
            ),
            "bias": (delta.sum(0), eta.sum(0)),
        }
        return torch.einsum("ij,ni->nj", w, delta), torch.einsum("ij,ni->nj", w**2, eta)


@dataclass
class Patches(Weights):
    """A convolution, as a dense layer on the patches of the images."""

    kernel: int = 5
    padding: int = 2

    def _cut(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel, padding=self.padding)

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        self.size = a.shape[2:]
        self.a = self._cut(a)
        spread = self._cut(v)
        (w, sw), (b, sb) = self.belief["weight"], self.belief["bias"]
        w, sw = w.flatten(1), sw.flatten(1)
        m = w @ self.a + b[:, None]
        s = sw @ (self.a**2 + spread) + w**2 @ spread + sb[:, None]
        side = [n + 2 * self.padding - self.kernel + 1 for n in self.size]
        return m.unflatten(2, side), s.unflatten(2, side)

    def backward(self, delta: Tensor, eta: Tensor) -> Moments:
        shape = self.belief["weight"][0].shape
        w = self.belief["weight"][0].flatten(1)
        delta, eta = delta.flatten(2), eta.flatten(2)
        self.learned = {
            "weight": (
                torch.einsum("nol,npl->op", delta, self.a).reshape(shape),
                torch.einsum("nol,npl->op", eta, self.a**2).reshape(shape),
            ),
            "bias": (delta.sum((0, 2)), eta.sum((0, 2))),
        }
        back = [
            F.fold(matrix.mT @ value, self.size, self.kernel, padding=self.padding)
            for matrix, value in ((w, delta), (w**2, eta))
        ]
        return back[0], back[1]


class Pool:
    """Means of 2 × 2 squares."""

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        squares = [x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)) for x in (a, v)]
        return squares[0].sum((3, 5)) / 4, squares[1].sum((3, 5)) / 16

    def backward(self, delta: Tensor, eta: Tensor) -> Moments:
        wide = [x.repeat_interleave(2, 2).repeat_interleave(2, 3) for x in (delta, eta)]
        return wide[0] / 4, wide[1] / 16


class Flat:
    """Images as vectors."""

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        self.shape = a.shape
        return a.flatten(1), v.flatten(1)

    def backward(self, delta: Tensor, eta: Tensor) -> Moments:
        return delta.reshape(self.shape), eta.reshape(self.shape)


class TangentReLU:
    """`φ(m)`, `φ'(m)² s`."""

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        self.slope = torch.where(a > 0, 1.0, 0.0)
        return torch.where(a > 0, a, 0.0), self.slope**2 * v

    def backward(self, delta: Tensor, eta: Tensor) -> Moments:
        return self.slope * delta, self.slope**2 * eta


class MatchedReLU(TangentReLU):
    """The exact moments of a rectified Gaussian."""

    def forward(self, a: Tensor, v: Tensor) -> Moments:
        m, s = a, v
        alpha = m / s.sqrt()
        mean = m * cdf(alpha) + s.sqrt() * pdf(alpha)
        variance = -(mean**2) + 2 * mean * m - m * s.sqrt() * pdf(alpha) + (s - m**2) * cdf(alpha)
        self.slope = cdf(alpha)
        return mean.clamp(min=0.0), variance.clamp(min=0.0)


def forward(layers: Sequence[Layer], x: Tensor, spread: Tensor | None = None) -> Moments:
    """The outputs' moments; inputs are known unless they have a variance."""
    a, v = x, torch.zeros_like(x) if spread is None else spread
    for layer in layers:
        a, v = layer.forward(a, v)
    return a, v


def backward(layers: Sequence[Layer], delta: Tensor, eta: Tensor) -> Moments:
    """The inputs' innovations; those of the weights stay with the layers."""
    for layer in reversed(layers):
        delta, eta = layer.backward(delta, eta)
    return delta, eta


def observe(mean: Tensor, variance: Tensor, y: Tensor, noise: float) -> Moments:
    """What targets with Gaussian noise say of the outputs; NaN says nothing."""
    total = variance + noise**2
    seen = ~y.isnan()
    delta = torch.where(seen, (y.nan_to_num() - mean) / total, 0.0)
    return delta, torch.where(seen, -1 / total, 0.0)


def step(layers: Sequence[Layer], x: Tensor, y: Tensor, noise: float) -> Belief:
    """One step without bounds; parameters are named as those of a torch.nn.Sequential."""
    backward(layers, *observe(*forward(layers, x), y, noise))
    return {
        f"{place}.{name}": moments
        for place, layer in enumerate(layers)
        if isinstance(layer, Weights)
        for name, moments in layer.updated().items()
    }
