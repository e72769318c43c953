"""Sums and products of Gaussian tensors.

Two different tensors are taken as independent even where they come from the same quantities, which
is TAGI's assumption throughout. Not so for one tensor with itself: the moments of `x + x`, `x - x`
and `x * x` are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.closed_forms import matched_square
from bayesrule.moments.product import Bilinear, product
from bayesrule.moments.shape import both, moved
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


def scaled(x: GaussianTensor, factor: float) -> GaussianTensor:
    """`c x`, with the variance `c² σ²`."""
    square = factor * factor
    mean, variance = x.centre * factor, x.variance * square
    return mapped("scale", x, mean, variance, lambda t: t * factor, lambda t: t * square)


def squared(x: GaussianTensor) -> GaussianTensor:
    """`x²`: `μ = m² + s`, `σ² = 2 s² + 4 s m²`, `cov(x², x)/s = 2 m`, all exact."""
    mean, variance, slope = matched_square(x.centre, x.variance)
    return mapped("square", x, mean, variance, lambda t: slope * t, lambda t: slope.square() * t)


def _back(t: Tensor, x: Tensor, factor: float) -> Tensor:
    summed = summed_like(t, x)
    return summed if factor == 1 else summed * factor


def _combined(left: Any, right: Any, a: float, b: float) -> GaussianTensor:
    """`a x + b y`, with the variance `a² σ_x² + b² σ_y²`."""
    if left is right:
        return scaled(left, a + b)
    if not isinstance(left, Tensor):
        left, right, a, b = right, left, b, a
    tape = tape_of(left, right)
    (x, sx, nx), (y, sy, ny) = parts(left), parts(right)
    mean = torch.add(x if a == 1 else x * a, y, alpha=b)
    variance = None if sx is None else sx if a * a == 1 else sx * (a * a)
    if variance is None:
        assert sy is not None
        variance = sy if b * b == 1 else sy * (b * b)
    elif sy is not None:
        variance = torch.add(variance, sy, alpha=b * b)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        return (
            None if nx is None else (_back(delta, x, a), _back(eta, x, a * a)),
            None if ny is None else (_back(delta, y, b), _back(eta, y, b * b)),
        )

    spread = variance.expand(mean.shape).to(mean.dtype)
    return tape.result("add", mean, spread, (nx, ny), to_sources)


@rule(*both("add"))
def add(input: Any, other: Any, *, alpha: float = 1) -> GaussianTensor:
    """`x + α y`."""
    return _combined(input, other, 1, alpha)


@rule(*both("sub"), *both("subtract"))
def sub(input: Any, other: Any, *, alpha: float = 1) -> GaussianTensor:
    """`x − α y`."""
    return _combined(input, other, 1, -alpha)


@rule(Tensor.__rsub__, torch.rsub)
def rsub(input: Any, other: Any, *, alpha: float = 1) -> GaussianTensor:
    """`y − α x`."""
    return _combined(input, other, -alpha, 1)


@rule(*both("neg"), *both("negative"))
def neg(input: GaussianTensor) -> GaussianTensor:
    """`−x`."""
    return scaled(input, -1.0)


@rule(*both("positive"))
def positive(input: GaussianTensor) -> GaussianTensor:
    """`+x`."""
    return input


_ELEMENTWISE = Bilinear(
    "mul",
    lambda left, right, bias=None: left * right,
    to_left=lambda result, left, right: summed_like(result * right, left),
    to_right=lambda result, left, right: summed_like(result * left, right),
)
"""`x w`, element by element, with broadcasting."""


def _real(x: Any, like: Any) -> Any:
    """Masks and whole numbers as real numbers, of which squares can be taken."""
    return x if x.is_floating_point() else x.to(like.dtype)


@rule(*both("mul"), *both("multiply"))
def mul(input: Any, other: Any) -> GaussianTensor:
    """`x y`."""
    if input is other:
        return squared(input)
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
    """Products of matrices and vectors; the two are taken as independent."""
    left = input.unsqueeze(0) if input.ndim == 1 else input
    right = other.unsqueeze(1) if other.ndim == 1 else other
    result = product(_MATRICES, left, right)
    if input.ndim == 1:
        result = result.squeeze(-1 if other.ndim == 1 else -2)  # type: ignore[assignment]
    return result.squeeze(-1) if other.ndim == 1 else result  # type: ignore[return-value]


@rule(*both("addmm"), *both("baddbmm"), *both("addmv"))
def addmm(
    input: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1
) -> GaussianTensor:
    """`β x + α a b`."""
    return _combined(input, left @ right, beta, alpha)


def reduced(name: str, x: GaussianTensor, dim: Any, keepdim: bool, mean: bool) -> GaussianTensor:
    """`c Σ x` over axes, with the variance `c² Σ σ²`."""
    before = x.centre.shape
    axes = [dim] if isinstance(dim, int) else list(dim or range(x.centre.ndim))
    kept = [1 if i in {a % len(before) for a in axes} else n for i, n in enumerate(before)]
    total = x.centre.sum(axes, keepdim)
    share = max(total.numel(), 1) / x.centre.numel() if mean else 1.0
    square = share * share
    variance = x.variance.sum(axes, keepdim) * square

    def back(t: Tensor) -> Tensor:
        return t.reshape(kept).expand(before)

    average = total * share
    return mapped(name, x, average, variance, lambda t: back(t * share), lambda t: back(t * square))


def _reduction(name: str) -> Callable[..., GaussianTensor]:
    """The rule of a sum or a mean over axes."""

    def apply(
        input: GaussianTensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        axis: Any = None,
        dtype: torch.dtype | None = None,
    ) -> GaussianTensor:
        x = input if dtype is None else input.to(dtype)
        return reduced(name, x, dim if axis is None else axis, keepdim, name == "mean")  # type: ignore[arg-type]

    return apply


for _name in ("sum", "mean"):
    rule(*both(_name))(_reduction(_name))


@rule(*both("cumsum"))
def cumsum(input: GaussianTensor, dim: int) -> GaussianTensor:
    """Running sums; they are taken as independent of each other."""

    def back(t: Tensor) -> Tensor:
        return t.flip(dim).cumsum(dim).flip(dim)

    return moved("cumsum", input, lambda t: t.cumsum(dim), back)
