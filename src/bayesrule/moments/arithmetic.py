"""Sums and products of Gaussian tensors, and dropout, a product with a mask.

As in all of TAGI, two different tensors are taken as independent, even if they were computed from
the same ones. A tensor combined with itself is not: the moments of `x + x`, `x - x` and `x * x` are
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.activations import elementwise
from bayesrule.moments.closed_forms import matched_square
from bayesrule.moments.product import Bilinear, product
from bayesrule.moments.shape import both, moved, moving
from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    NoRule,
    mapped,
    parts,
    rule,
    summed_like,
    tape_of,
)


@rule(*both("isnan"))
def isnan(input: GaussianTensor) -> Tensor:
    """Where the means are NaN, which marks missing targets."""
    return input.centre.isnan()


def scaled(x: GaussianTensor, factor: float | Tensor, name: str = "scale") -> GaussianTensor:
    """`c x`, with variance `c² σ²`; a tensor c must broadcast to the shape of x."""
    square = factor * factor
    mean, variance = x.centre * factor, x.variance * square
    return mapped(name, x, mean, variance, lambda t: t * factor, lambda t: t * square)


def _times(t: Any, factor: float) -> Any:
    return t if factor == 1 else t * factor


def _combined(left: Any, right: Any, a: float, b: float) -> GaussianTensor:
    """`a x + b y`, with variance `a² σ_x² + b² σ_y²`."""
    if left is right:
        return scaled(left, a + b)
    if not isinstance(left, Tensor):
        left, right, a, b = right, left, b, a
    tape = tape_of(left, right)
    (x, sx, nx), (y, sy, ny) = parts(left), parts(right)
    mean = torch.add(_times(x, a), y, alpha=b)
    if sx is None or sy is None:
        variance = _times(sx, a * a) if sy is None else _times(sy, b * b)
    else:
        variance = torch.add(_times(sx, a * a), sy, alpha=b * b)

    def back(like: Tensor, factor: float, *innovation: Tensor) -> Innovation:
        delta, eta = (summed_like(t, like) for t in innovation)
        return _times(delta, factor), _times(eta, factor * factor)

    def to_sources(*innovation: Tensor) -> Sequence[Innovation | None]:
        to_x = None if nx is None else back(x, a, *innovation)
        return to_x, None if ny is None else back(y, b, *innovation)

    variance = variance.expand(mean.shape).to(mean.dtype)
    return tape.result("add", mean, variance, (nx, ny), to_sources)


# x + α y, x − α y and y − α x; −x and +x
_sub, _rsub = [*both("sub"), *both("subtract")], [Tensor.__rsub__, torch.rsub]
rule(*both("add"))(lambda input, other, *, alpha=1: _combined(input, other, 1, alpha))
rule(*_sub)(lambda input, other, *, alpha=1: _combined(input, other, 1, -alpha))
rule(*_rsub)(lambda input, other, *, alpha=1: _combined(input, other, -alpha, 1))
rule(*both("neg"), *both("negative"))(lambda input: scaled(input, -1.0))
rule(*both("positive"))(lambda input: input)

_ELEMENTWISE = Bilinear(
    "mul",
    lambda left, right, bias=None: left * right,
    to_left=lambda result, left, right: summed_like(result * right, left),
    to_right=lambda result, left, right: summed_like(result * left, right),
)
"""`x w`, element by element, with broadcasting."""


def _real(x: Any, like: Any) -> Any:
    """Masks and integers as floating-point numbers, which can be squared."""
    return x if x.is_floating_point() else x.to(like.dtype)


@rule(*both("mul"), *both("multiply"))
def mul(input: Any, other: Any) -> GaussianTensor:
    """`x y`."""
    if input is other:
        return elementwise("square", input, *matched_square(input.centre, input.variance))
    if not isinstance(other, Tensor):
        return scaled(input, other)
    if not isinstance(input, Tensor):
        return scaled(other, input)  # type: ignore[arg-type]
    return product(_ELEMENTWISE, _real(input, other), _real(other, input))


@rule(*both("div"), *both("divide"), *both("true_divide"))
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> GaussianTensor:
    """`x / c` for a plain c."""
    if isinstance(other, GaussianTensor) or rounding_mode is not None:
        what = "rounded division" if rounding_mode else "division by a Gaussian tensor"
        raise NoRule(f"No moment rule for {what}; divide by numbers or plain tensors.")
    if not isinstance(other, Tensor):
        return scaled(input, 1.0 / other)
    return mul(input, _real(other, input).reciprocal())


def _to_right_matrix(result: Tensor, left: Tensor, right: Tensor) -> Tensor:
    if right.ndim == 2:
        return left.flatten(0, -2).mT @ result.flatten(0, -2)
    return summed_like(left.mT @ result, right)


_MATRICES = Bilinear(
    "matmul",
    lambda left, right, bias=None: left @ right,
    to_left=lambda result, left, right: summed_like(result @ right.mT, left),
    to_right=_to_right_matrix,
)
"""`x w`, products of matrices (..., n, k) and (..., k, m) with broadcasting."""


@rule(*both("matmul"), *both("mm"), *both("bmm"), *both("mv"), *both("dot"), Tensor.__matmul__)
def matmul(input: Any, other: Any) -> GaussianTensor:
    """Products of matrices and vectors, taken as independent."""
    left = input.unsqueeze(0) if input.ndim == 1 else input
    right = other.unsqueeze(1) if other.ndim == 1 else other
    result: Any = product(_MATRICES, left, right)
    if input.ndim == 1:
        result = result.squeeze(-1 if other.ndim == 1 else -2)
    return result.squeeze(-1) if other.ndim == 1 else result


@rule(*both("addmm"), *both("baddbmm"), *both("addmv"))
def addmm(
    input: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
) -> GaussianTensor:
    """`β x + α a b`."""
    return _combined(input, left @ right, beta, alpha)


@rule(*both("sum"))
def total(
    input: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None
) -> GaussianTensor:
    """Sums over axes."""
    x = input if dtype is None else input.to(dtype)
    before, over = x.centre.shape, dim if axis is None else axis
    axes = [over] if isinstance(over, int) else list(over or range(len(before)))
    kept = [1 if i in {a % len(before) for a in axes} else n for i, n in enumerate(before)]
    return moved("sum", x, lambda t: t.sum(axes, keepdim), lambda t: t.reshape(kept).expand(before))


@rule(*both("mean"))
def average(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
    """Means over axes, with the options of sums."""
    result = total(input, *args, **kwargs)
    return scaled(result, max(result.centre.numel(), 1) / input.centre.numel(), "mean")


# Running sums, taken as independent of each other.
rule(*both("cumsum"))(moving("cumsum"))


def _ones(x: Tensor, axes: int | None) -> Tensor:
    """Ones that broadcast to x, with the sizes `x.shape[:axes]` and length one after them."""
    if axes is None:
        return torch.ones_like(x)
    shape = x.shape[:axes]
    return x.new_ones(shape + (1,) * (x.ndim - len(shape)))


def _dropout(
    axes: int | None, input: GaussianTensor, p: float = 0.5, training: bool = True, **_: Any
) -> GaussianTensor:
    """Draws the mask and multiplies by it; never in place."""
    return scaled(input, F.dropout(_ones(input.centre, axes), p), "dropout") if training else input


rule(F.dropout, torch.dropout)(partial(_dropout, None))
for _axes, _function in ((-1, F.dropout1d), (2, F.dropout2d), (-3, F.dropout3d)):
    rule(_function)(partial(_dropout, _axes))

_SATURATION = -1.7580993408473766
"""The lower limit of SELU units, `−λα`; Klambauer et al. (2017)."""


def _alpha_dropout(
    axes: int | None, input: GaussianTensor, p: float = 0.5, training: bool = False, **_: Any
) -> GaussianTensor:
    """Dropout for SELU networks: sets units to their lower limit, keeps mean and variance.

    `y = a [mask x + (1 − mask − p) α']` with `a = [(1 − p)(1 + p α'²)]^-½`.
    """
    if not training or p == 0:
        return input
    if not 0 <= p < 1:
        raise ValueError(f"Dropout of Gaussians takes a probability 0 ≤ p < 1, got {p}.")
    scale = ((1.0 - p) * (1.0 + p * _SATURATION**2)) ** -0.5
    mask = _ones(input.centre, axes).bernoulli_(1.0 - p)
    kept = scaled(input, mask * scale, "alpha_dropout")
    return _combined(kept, (1.0 - p - mask) * (scale * _SATURATION), 1, 1)


rule(F.alpha_dropout, torch.alpha_dropout)(partial(_alpha_dropout, None))
rule(F.feature_alpha_dropout, torch.feature_alpha_dropout)(partial(_alpha_dropout, 2))
