"""Normalising layers of Gaussians.

With the statistics M and V of the normalised elements, `r = 1/√(V + ε)` and `d = μ − M`:
`m = r d γ̄ + β̄`, `s = r² [σ² (γ̄² + v_γ) + v_γ d²] + v_β`. The innovation of γ is `r d δ` and
`(r d)² η`. With M and V as constants, that of the input is `r γ̄ δ` and `(r γ̄)² η`, as in the first
papers on TAGI. In truth M and V depend on the inputs: that changes δ by as much again, though η
hardly, and is included unless `constant_statistics` is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, parts, rule, tape_of

Through: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From `r γ̄ δ` and the normalised `(μ − M) r` to the δ of the input."""


def _statistics(x: Tensor, s: Tensor | None, axes: Sequence[int]) -> tuple[Tensor, Tensor, Through]:
    """`M = Σμ/N` and `V = [Σ(μ − M)² + Σσ²]/(N − 1)` over axes that are kept with length one.

    The function that comes with them adds the slopes of M and V, which depend on all N inputs:
    `∂y_j/∂μ_i = r γ_j (1[i = j] − 1/N − x̂_i x̂_j / (N − 1))` with `x̂ = (μ − M) r`.
    """
    dims, count = list(axes), math.prod(x.shape[axis] for axis in axes)
    degrees = max(count - 1, 1)
    variance, mean = torch.var_mean(x, dims, correction=min(1, count - 1), keepdim=True)
    if s is not None:
        variance = variance.add(s.sum(dims, keepdim=True), alpha=1.0 / degrees)

    def through(u: Tensor, unit: Tensor) -> Tensor:
        along = (u * unit).sum(dims, keepdim=True) / degrees
        return u - torch.addcmul(u.mean(dims, keepdim=True), unit, along)

    return mean, variance, through


def _viewed(x: Any, shape: Sequence[int]) -> tuple[Tensor | None, Tensor | None, Any]:
    """Mean and variance of a weight in the shape in which it multiplies, and its node."""
    *moments, node = parts(x)
    mean, variance = (None if t is None else t.reshape(shape) for t in moments)
    return mean, variance, node


def _affine(x: Tensor, factor: Tensor, shift: Tensor | None) -> Tensor:
    return x * factor if shift is None else torch.addcmul(shift, x, factor)


def _variance(
    x: Tensor,
    s: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    slope: Tensor,
    sg: Tensor | None,
    sb: Tensor | None,
) -> Tensor:
    """`r² [σ² (γ̄² + v_γ) + v_γ d²] + v_β`, where any of the three variances may be missing."""
    root = None if sg is None else scale * sg.sqrt()
    distance = None if root is None else _affine(x, root, -shift * root)
    if s is not None:
        square = slope.square() if root is None else torch.addcmul(slope.square(), root, root)
        by_x = _affine(s, square, sb)
        return by_x if distance is None else torch.addcmul(by_x, distance, distance)
    if distance is None:
        assert sb is not None  # otherwise nothing is Gaussian and there is no rule to apply
        return sb.expand(x.shape)
    return distance.square() if sb is None else torch.addcmul(sb, distance, distance)


def normalised(
    name: str,
    input: Any,
    shift: Tensor,
    scale: Tensor,
    weight: Any,
    bias: Any,
    shape: Sequence[int],
    through: Through | None = None,
) -> GaussianTensor:
    """`(x − M) r γ + β` for fixed M and r that broadcast against x; γ and β viewed as `shape`.

    `through` adds the slopes of M and r, where they were computed from x. Factors are combined
    before they meet x, so that the large tensors of batch norm are read as seldom as possible.
    """
    x, s, nx = parts(input)
    (g, sg, ng), (b, sb, nb) = _viewed(weight, shape), _viewed(bias, shape)
    slope = scale if g is None else scale * g
    # −M r γ̄ is put into the shift: one pass over x less than with differences from M.
    mean = _affine(x, slope, -shift * slope if b is None else torch.addcmul(b, -shift, slope))
    variance = _variance(x, s, shift, scale, slope, sg, sb)

    tape = tape_of(input, weight, bias)

    def to_weight(t: Tensor, like: Any) -> Tensor:
        return t.sum_to_size(shape).reshape(like.shape)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_x = to_g = to_b = None
        unit = _affine(x, scale, -shift * scale)
        if nx is not None:
            to_x = delta * slope, eta * slope.square()
            if through is not None and not tape.activations.constant_statistics:
                to_x = through(to_x[0], unit), to_x[1]
        if ng is not None:
            to_g = to_weight(unit * delta, weight), to_weight(unit.square() * eta, weight)
        if nb is not None:
            to_b = to_weight(delta, bias), to_weight(eta, bias)
        return to_x, to_g, to_b

    return tape.result(name, mean, variance, (nx, ng, nb), to_sources)


def _average(running: Tensor | None, new: Tensor, momentum: float) -> None:
    """Torch's exponential average, in place: `(1 − momentum) · old + momentum · new`.

    Statistics of several examples are averaged first.
    """
    if running is not None:
        # The averages are a state, so no gradient may lead back through them to an earlier batch.
        new = (new.mean(0) if len(new) > 1 else new).detach().reshape(running.shape)
        running.mul_(1.0 - momentum).add_(new, alpha=momentum)


def _channel_norm(
    name: str,
    input: Any,
    running: tuple[Tensor | None, Tensor | None],
    axes: Sequence[int] | None,
    weight: Any = None,
    bias: Any = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> GaussianTensor:
    """Each channel normalised by its statistics over `axes`, or by running averages if None."""
    x, s, _ = parts(input)
    shape = [1, x.shape[1]] + [1] * (x.ndim - 2)
    through: Through | None = None
    if axes is None:
        assert running[0] is not None
        assert running[1] is not None
        mean, variance = running[0].reshape(shape), running[1].reshape(shape)
    else:
        mean, variance, through = _statistics(x, s, axes)
        _average(running[0], mean, momentum)
        _average(running[1], variance, momentum)
    return normalised(name, input, mean, (variance + eps).rsqrt(), weight, bias, shape, through)


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
    return _channel_norm("batch_norm", input, (running_mean, running_var), axes, **options)


@rule(F.instance_norm)
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    use_input_stats: bool = True,
    **options: Any,
) -> GaussianTensor:
    """Each channel of each example normalised, or by the running averages in evaluation."""
    axes = range(2, input.ndim) if use_input_stats else None
    return _channel_norm("instance_norm", input, (running_mean, running_var), axes, **options)


@rule(F.group_norm)
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> GaussianTensor:
    """Groups of channels of each example normalised."""
    x, s, _ = parts(input)
    width = x.shape[1] // num_groups

    def grouped(t: Tensor) -> Tensor:
        return t.reshape(len(t), num_groups, -1)

    mean, variance, within = _statistics(grouped(x), None if s is None else grouped(s), [2])
    ones = [1] * (x.ndim - 2)
    shift, scale = (
        t.repeat_interleave(width, 1).reshape(len(x), -1, *ones)
        for t in (mean, (variance + eps).rsqrt())
    )

    def through(u: Tensor, unit: Tensor) -> Tensor:
        return within(grouped(u), grouped(unit)).reshape(u.shape)

    shape = [1, x.shape[1], *ones]
    return normalised("group_norm", input, shift, scale, weight, bias, shape, through)


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
    mean, variance, through = _statistics(x, s, range(-len(normalized_shape), 0))
    scale = (variance + eps).rsqrt()
    return normalised("layer_norm", input, mean, scale, weight, bias, normalized_shape, through)


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
    zero = torch.zeros_like(scale)

    def through(u: Tensor, unit: Tensor) -> Tensor:
        return u - unit * (u * unit).mean(axes, keepdim=True)

    return normalised("rms_norm", input, zero, scale, weight, None, normalized_shape, through)
