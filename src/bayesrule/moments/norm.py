"""Normalising layers of Gaussians.

With the expected statistics M and V of the normalised elements, `r = 1/√(V + ε)` and `d = μ − M`:
`m = r d γ̄ + β̄`, `s = σ_y² (γ̄² + v_γ) + v_γ (r d)² + v_β` with the variance `σ_y² = r² σ²` of the
normalised input. The innovation of γ is `r d δ` and `(r d)² η`. If M and V were constants, as in
the first papers on TAGI, that of the input would be `r γ̄ δ` and `(r γ̄)² η`. But M and V depend on
the N inputs. This changes δ by as much again, η hardly, and is included unless
`constant_statistics` is chosen. It also lowers σ_y² by a share near 2/N, which is included up to
N = 256: `σ_y² = (J ∘ J) σ² / (V' + ε)`, where r J are the slopes. Inputs that grow together change
nothing, so V' leaves out what they would add to V: `V' = Σ(μ − M)²/N + Σ(J ∘ J)σ²/N`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, parts, rule, tape_of

_FEW = 256


@dataclass(frozen=True)
class Slopes:
    """The slopes of `(x − M) r` in x are r J, with `J_ij = 1[i = j] − (1 + x̂_i x̂_j) / N`.

    N counts the elements over `dims`; `x̂ = (μ − M) r` is the normalised mean. Without M, as in RMS
    norm (`centred=False`), the 1 in the bracket is left out.
    """

    dims: list[int]
    count: int
    centred: bool = True

    def through(self, u: Tensor, unit: Tensor) -> Tensor:
        """`Jᵀ u`."""
        along = unit * (u * unit).mean(self.dims, keepdim=True)
        return u - (along + u.mean(self.dims, keepdim=True) if self.centred else along)

    def left(self, v: Tensor, unit: Tensor, scale: Tensor) -> Tensor:
        """`(J ∘ J) v / ((V' + ε) r²)`, what normalising leaves of the variance v; r is `scale`."""
        spread = self._spread(v, unit)
        lost = (v * (1.0 - self.centred / self.count) - spread).mean(self.dims, keepdim=True)
        return spread / (1.0 - lost * scale.square())

    def _spread(self, v: Tensor, unit: Tensor) -> Tensor:
        """`(J ∘ J) v`."""
        squares, share = unit.square(), 1.0 / self.count
        diagonal = v * (1.0 - (2.0 * share) * (squares + self.centred))
        others = squares * self._sum(v * squares)
        if self.centred:
            others = others + self._sum(v) + unit * (2.0 * self._sum(v * unit))
        return diagonal + others * share**2

    def _sum(self, t: Tensor) -> Tensor:
        return t.sum(self.dims, keepdim=True)


def _statistics(x: Tensor, s: Tensor | None, axes: Sequence[int]) -> tuple[Tensor, Tensor, Slopes]:
    """`M = Σμ/N` and `V = Σ(μ − M)²/N + (1 − 1/N) Σσ²/N`; the axes stay, with length one.

    V is the expectation of torch's variance, which divides by N.
    """
    dims, count = list(axes), math.prod(x.shape[axis] for axis in axes)
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    if s is not None:
        variance = variance.add(s.sum(dims, keepdim=True), alpha=(1.0 - 1.0 / count) / count)
    return mean, variance, Slopes(dims, count)


def _viewed(x: Any, shape: Sequence[int]) -> tuple[Tensor | None, Tensor | None, Any]:
    """Mean and variance of a weight, reshaped to broadcast against the input, and its node."""
    *moments, node = parts(x)
    mean, variance = (None if t is None else t.reshape(shape) for t in moments)
    return mean, variance, node


def _affine(x: Tensor, factor: Tensor, shift: Tensor | None) -> Tensor:
    """`c x + b`, or `c x` if b is None."""
    return x * factor if shift is None else torch.addcmul(shift, x, factor)


def normalised(
    name: str,
    input: Any,
    shift: Tensor,
    scale: Tensor,
    weight: Any,
    bias: Any,
    shape: Sequence[int],
    slopes: Slopes | None = None,
) -> GaussianTensor:
    """`(x − M) r γ + β`; M and r broadcast against x, and γ and β are viewed as `shape`.

    Give `slopes` if M and r were computed from x; they lower the variance if M and r average few
    elements. Factors are combined before they meet x, so that the large tensors of batch norm are
    read as seldom as possible.
    """
    x, s, nx = parts(input)
    tape = tape_of(input, weight, bias)
    slopes = None if tape.activations.constant_statistics else slopes
    if s is not None and slopes is not None and slopes.count <= _FEW:
        s = slopes.left(s, _affine(x, scale, -shift * scale), scale)
    (g, sg, ng), (b, sb, nb) = _viewed(weight, shape), _viewed(bias, shape)
    slope = scale if g is None else scale * g
    # −M r γ̄ goes into the shift, which saves a pass over x to subtract M.
    mean = _affine(x, slope, _affine(-shift, slope, b))
    # r² [σ² (γ̄² + v_γ) + v_γ d²] + v_β, where any of the three variances may be missing
    root = None if sg is None else scale * sg.sqrt()
    variance = sb
    if s is not None:
        square = slope.square() if root is None else _affine(root, root, slope.square())
        variance = _affine(s, square, variance)
    if root is not None:
        distance = _affine(x, root, -shift * root)
        variance = _affine(distance, distance, variance)
    assert variance is not None  # otherwise nothing is Gaussian and there is no rule to apply

    def to_weight(t: Tensor, like: Any) -> Tensor:
        return t.sum_to_size(shape).reshape(like.shape)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_x = to_g = to_b = None
        unit = _affine(x, scale, -shift * scale)
        if nx is not None:
            to_x = delta * slope, eta * slope.square()
            if slopes is not None:
                to_x = slopes.through(to_x[0], unit), to_x[1]
        if ng is not None:
            to_g = to_weight(unit * delta, weight), to_weight(unit.square() * eta, weight)
        if nb is not None:
            to_b = to_weight(delta, bias), to_weight(eta, bias)
        return to_x, to_g, to_b

    return tape.result(name, mean, variance.expand(x.shape), (nx, ng, nb), to_sources)


def _average(running: Tensor | None, new: Tensor, momentum: float, factor: float = 1.0) -> None:
    """Updates torch's running average in place; averages the statistics over examples first."""
    if running is not None:
        # Running averages are a state: no gradient may lead through them to an earlier batch.
        new = (new.mean(0) if len(new) > 1 else new).detach().reshape(running.shape)
        running.mul_(1.0 - momentum).add_(new, alpha=momentum * factor)


def _channel_norm(
    name: str,
    input: Any,
    axes: Sequence[int] | None,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> GaussianTensor:
    """Each channel normalised by its statistics over `axes`, or by running averages if None."""
    x, s, _ = parts(input)
    shape = [1, x.shape[1]] + [1] * (x.ndim - 2)
    slopes: Slopes | None = None
    if axes is None:
        mean, variance = running_mean.reshape(shape), running_var.reshape(shape)
    else:
        mean, variance, slopes = _statistics(x, s, axes)
        _average(running_mean, mean, momentum)
        # Torch normalises by the variance that divides by N, but averages the one with N − 1.
        _average(running_var, variance, momentum, slopes.count / max(slopes.count - 1, 1))
    scale = (variance + eps).rsqrt()
    return normalised(name, input, mean, scale, weight, bias, shape, slopes)


@rule(F.batch_norm)
def batch_norm(
    input: Any, running_mean: Any, running_var: Any, *, training: bool = False, **options: Any
) -> GaussianTensor:
    """Each channel normalised over the batch in training, by the running averages otherwise."""
    shape = parts(input)[0].shape
    if training and shape.numel() == shape[1]:
        raise ValueError(
            "Batch norm needs more than one value in each channel to learn from, got "
            f"{tuple(shape)}; give a larger batch."
        )
    axes = [0, *range(2, len(shape))] if training else None
    averages = running_mean, running_var
    return _channel_norm("batch_norm", input, axes, *averages, **options)


@rule(F.instance_norm)
def instance_norm(input: Any, *, use_input_stats: bool = True, **options: Any) -> GaussianTensor:
    """Each channel of each example normalised, or by the running averages in evaluation."""
    axes = range(2, input.ndim) if use_input_stats else None
    return _channel_norm("instance_norm", input, axes, **options)


@rule(F.group_norm)
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> GaussianTensor:
    """Groups of channels of each example normalised."""
    before = input.shape
    grouped = input.reshape(before[0], num_groups, before[1] // num_groups, -1)
    mean, variance, slopes = _statistics(*parts(grouped)[:2], [2, 3])
    scale, shape = (variance + eps).rsqrt(), [1, *grouped.shape[1:3], 1]
    result: Any = normalised("group_norm", grouped, mean, scale, weight, bias, shape, slopes)
    return result.reshape(before)


@rule(F.layer_norm)
def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> GaussianTensor:
    """Each example normalised over its last axes."""
    x, s, _ = parts(input)
    mean, variance, slopes = _statistics(x, s, range(-len(normalized_shape), 0))
    scale = (variance + eps).rsqrt()
    return normalised("layer_norm", input, mean, scale, weight, bias, normalized_shape, slopes)


@rule(F.rms_norm)
def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> GaussianTensor:
    """Each example divided by `√(Σ(μ² + σ²)/N + ε)` over its last axes."""
    x, s, _ = parts(input)
    axes = list(range(-len(normalized_shape), 0))
    second = x.square() if s is None else x.square() + s
    floor = torch.finfo(x.dtype).eps if eps is None else eps
    scale = (second.mean(axes, keepdim=True) + floor).rsqrt()
    zero, slopes = torch.zeros_like(scale), Slopes(axes, math.prod(normalized_shape), centred=False)
    return normalised("rms_norm", input, zero, scale, weight, None, normalized_shape, slopes)
