"""Keys and values of attention: independent of each other, or projected by shared weights.

In `nn.MultiheadAttention` the tokens x_s give keys `W x_s + a` and values `U x_s + b`. These are
not independent, because all tokens share W, U and b: the uncertainty of b does not average out over
tokens, and U acts on the average of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import Innovation, full_parts, parts


def over_features(x: Tensor, k: Tensor, c: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """`Σ_d x_ld (mask_ls k_sd − c_ld)²`, (..., L, S)."""
    xc = x * c
    crossed = 2.0 * mask * (xc @ k.mT)
    return mask * mask * (x @ k.square().mT) - crossed + (xc * c).sum(-1, keepdim=True)


def split_heads(x: Any, num: int) -> Any:
    """(S, N, E) as (N, heads, S, E / heads)."""
    if x.shape[-1] % num:
        raise ValueError(f"{x.shape[-1]} features cannot be shared by {num} heads.")
    return x.unflatten(-1, (num, -1)).permute(1, 2, 0, 3)


def _joined_heads(x: Tensor) -> Tensor:
    """(N, heads, S, D) as (S, N, heads D)."""
    return x.permute(2, 0, 1, 3).flatten(2)


def _mixed(weights: Tensor, x: Tensor) -> Tensor:
    """`Σ_s w_hls x_se` for all heads, (N, heads, L, S) and (S, N, E) to (N, heads, L, E)."""
    return (weights.flatten(1, 2) @ x.transpose(0, 1)).unflatten(1, weights.shape[1:3])


def _unshared(x: Any, weight: Any, heads: int) -> Tensor | None:
    """The part of the variance of `W x_s` that other tokens do not share, (N, heads, S, D)."""
    variance = parts(x)[1]
    if variance is None:
        return None
    w, sw, _ = full_parts(weight)
    return split_heads(F.linear(variance, w.square() + sw), heads)


@dataclass(frozen=True)
class Keys:
    """Variances of keys: `unshared` (..., S, D) belong to single keys, `shared` to the weights W.

    `shared` (heads, D, E) are the variances of W, and `x` (S, N, E) the means of the tokens.
    """

    unshared: Tensor | None
    x: Tensor | None = None
    shared: Tensor | None = None

    @staticmethod
    def projected(x: Any, weight: Any, heads: int) -> Keys:
        """Keys `W x_s + a`; a adds a constant to all scores of a query, which softmax ignores."""
        variance = parts(weight)[1]
        shared = None if variance is None else variance.unflatten(0, (heads, -1))
        return Keys(_unshared(x, weight, heads), parts(x)[0], shared)

    def alone(self, squares: Tensor) -> Tensor | float:
        """`Σ_d q_ld² σ_sd²`, (..., L, S): the variances that single keys give their scores."""
        return 0.0 if self.unshared is None else squares @ self.unshared.mT

    def together(self, squares: Tensor, p: Tensor) -> Tensor | float:
        """`Σ_de q_ld² V_de (x_se − Σ_s p_ls x_se)²`, (N, heads, L, S): variances due to W."""
        if self.x is None or self.shared is None:
            return 0.0
        w = torch.einsum("nhld,hde->nhle", squares, self.shared)
        x, average = self.x.transpose(0, 1), _mixed(p, self.x)
        variance = over_features(w.flatten(1, 2), x, average.flatten(1, 2))
        return variance.clamp_min(0.0).unflatten(1, p.shape[1:3])


class Values(Protocol):
    """The values that attention averages: means and variances (..., S, D), and their sources."""

    mean: Tensor
    variance: Tensor
    sources: tuple[Any, ...]

    def averaged(self, weights: Tensor) -> Tensor:
        """The variance of `Σ_s w_ls v_s` for known weights, (..., L, D)."""

    def back(self, weights: Tensor, delta: Tensor, eta: Tensor) -> list[Innovation | None]:
        """Turns the innovation of this average into those of the sources."""


class Rows:
    """Values that are independent of each other."""

    def __init__(self, value: Any) -> None:
        self.mean, self.variance, _ = full_parts(value)
        self.sources = (value,)

    def averaged(self, weights: Tensor) -> Tensor:
        return weights.square() @ self.variance

    def back(self, weights: Tensor, delta: Tensor, eta: Tensor) -> list[Innovation | None]:
        return [(weights.mT @ delta, weights.square().mT @ eta)]


class Projected:
    """Values `U x_s + b` of tokens x (S, N, E), with U (heads D, E) and b (heads D) or None.

    Their average is `U (Σ_s w_s x_s) + b Σ_s w_s`.
    """

    def __init__(self, x: Any, weight: Any, bias: Any, heads: int) -> None:
        self.sources = x, weight, bias
        self.x, (self.w, sw, _) = parts(x)[0], full_parts(weight)
        b, sb, _ = (None, None, None) if bias is None else full_parts(bias)
        self.unshared = _unshared(x, weight, heads)
        self.mean = split_heads(F.linear(self.x, self.w, b), heads)
        shared = split_heads(F.linear(self.x.square(), sw, sb), heads)
        self.variance = shared if self.unshared is None else shared + self.unshared
        self.by_weight = sw.unflatten(0, (heads, -1))
        self.by_bias = 0.0 if sb is None else sb.unflatten(0, (heads, 1, -1))

    def averaged(self, weights: Tensor) -> Tensor:
        squares = _mixed(weights, self.x).square()
        shared = torch.einsum("nhle,hde->nhld", squares, self.by_weight)
        shared = shared + weights.sum(-1, keepdim=True).square() * self.by_bias
        return shared if self.unshared is None else shared + weights.square() @ self.unshared

    def back(self, weights: Tensor, delta: Tensor, eta: Tensor) -> list[Innovation | None]:
        to_x = to_w = to_b = None
        needed = [parts(source)[2] is not None for source in self.sources]
        if needed[0]:
            first, second = weights.mT @ delta, weights.square().mT @ eta
            to_x = _joined_heads(first) @ self.w, _joined_heads(second) @ self.w.square()
        if needed[1]:
            x = _mixed(weights, self.x)
            to_w = _to_weight(delta, x), _to_weight(eta, x.square())
        if needed[2]:
            total = weights.sum(-1, keepdim=True)
            to_b = _to_bias(delta * total), _to_bias(eta * total.square())
        return [to_x, to_w, to_b]


def _to_weight(t: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("nhld,nhle->hde", t, x).flatten(0, 1)


def _to_bias(t: Tensor) -> Tensor:
    return t.sum((0, 2)).flatten()
