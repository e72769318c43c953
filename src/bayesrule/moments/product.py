"""Products of Gaussians: linear layers, convolutions, matrix and elementwise products.

For `y = x w` (any bilinear map), x ~ N(μ, σ²) and w ~ N(w̄, v), all independent:
`E y = μ w̄`, `Var y = (μ² + σ²) v + σ² w̄²`, `cov(x, y) = σ² w̄`, `cov(w, y) = v μ`; the moments of a
sum are the sums of the moments. Goulet, Nguyen & Amiri (2021), eqs 2 to 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, parts, rule, tape_of


class Bilinear(ABC):
    """A map linear in each of its two arguments, and its two adjoints."""

    name: str

    @abstractmethod
    def apply(self, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        """The map itself, with a bias where it has one."""

    @abstractmethod
    def to_left(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The adjoint of `left → apply(left, right)` at `result`; `left` tells the shape."""

    @abstractmethod
    def to_right(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """The adjoint of `right → apply(left, right)` at `result`; `right` tells the shape."""

    def to_bias(self, result: Tensor) -> Tensor:
        """The adjoint of adding the bias."""
        raise TypeError(f"{self.name} has no bias.")


def product(op: Bilinear, left: Any, right: Any, bias: Any = None) -> GaussianTensor:
    """`op(left, right) + bias` where any of the three may be Gaussian."""
    (x, sx, nx), (w, sw, nw), (b, sb, nb) = parts(left), parts(right), parts(bias)
    mean = op.apply(x, w, b)
    w_squared = w.square() if sx is not None else w
    x_squared = x.square() if sw is not None else x
    variance = None
    if sw is not None:
        variance = op.apply(x_squared if sx is None else x_squared + sx, sw, sb)
    if sx is not None:
        rest = op.apply(sx, w_squared, sb if sw is None else None)
        variance = rest if variance is None else variance.add_(rest)
    if variance is None:
        assert sb is not None  # otherwise nothing is Gaussian and there is no rule to apply
        variance = op.apply(torch.zeros_like(x), w, sb)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_x = to_w = to_b = None
        if nx is not None:
            to_x = op.to_left(delta, x, w), op.to_left(eta, x, w_squared)
        if nw is not None:
            to_w = op.to_right(delta, x, w), op.to_right(eta, x_squared, w)
        if nb is not None:
            to_b = op.to_bias(delta), op.to_bias(eta)
        return to_x, to_w, to_b

    tape = tape_of(left, right, bias)
    return tape.result(op.name, mean, variance, (nx, nw, nb), to_sources)


class Linear(Bilinear):
    """`x wᵀ + b`, x (..., in), w (out, in)."""

    name = "linear"

    def apply(self, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(left, right, bias)

    def to_left(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return result @ right

    def to_right(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return _rows(result).mT @ _rows(left)

    def to_bias(self, result: Tensor) -> Tensor:
        return _rows(result).sum(0)


def _rows(x: Tensor) -> Tensor:
    """All axes but the last as one, (*, n) to (m, n); a vector is one row."""
    return x.reshape(-1, x.shape[-1])


@rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> GaussianTensor:
    """A linear layer."""
    return product(Linear(), input, weight, bias)


class Convolution(Bilinear):
    """A convolution of any dimension, plain or transposed, with bias."""

    name = "convolution"

    def __init__(
        self,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        transposed: bool = False,
        output_padding: Sequence[int] | None = None,
    ) -> None:
        extra = list(output_padding or [0] * len(stride))
        self._options = (list(stride), list(padding), list(dilation), transposed, extra, groups)

    def apply(self, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.convolution(left, right, bias, *self._options)

    def _back(self, result: Tensor, left: Tensor, right: Tensor, mask: list[bool]) -> Any:
        backward = torch.ops.aten.convolution_backward
        return backward(result, left, right, None, *self._options, mask)

    def to_left(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._back(result, left, right, [True, False, False])[0]

    def to_right(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._back(result, left, right, [False, True, False])[1]

    def to_bias(self, result: Tensor) -> Tensor:
        return result.transpose(0, 1).flatten(1).sum(1)
