"""Products of Gaussians: linear layers, convolutions, matrix and elementwise products.

For `y = x w` with independent x ~ N(μ, σ²) and w ~ N(w̄, v):
`E y = μ w̄`, `Var y = (μ² + σ²) v + σ² w̄²`, `cov(x, y) = σ² w̄`, `cov(w, y) = v μ`. Any bilinear map
is a sum of such products, and their moments add up. Goulet, Nguyen & Amiri (2021), eqs 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, Map, parts, rule, tape_of

Adjoint: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes a result and both arguments; of the one that it replaces only the shape matters."""


@dataclass(frozen=True)
class Bilinear:
    """A map `apply(left, right, bias)` that is linear in `left` and in `right`, and its adjoints.

    `to_left` is the adjoint of `left → apply(left, right)`, `to_right` that of
    `right → apply(left, right)`, and `to_bias` that of adding the bias, None without one.
    """

    name: str
    apply: Callable[..., Tensor]
    to_left: Adjoint
    to_right: Adjoint
    to_bias: Map | None = None


def product(op: Bilinear, left: Any, right: Any, bias: Any = None) -> GaussianTensor:
    """`op(left, right) + bias` where any of the three may be Gaussian."""
    if bias is not None and op.to_bias is None:
        raise TypeError(f"{op.name} has no bias.")
    (x, sx, nx), (w, sw, nw), (b, sb, nb) = parts(left), parts(right), parts(bias)
    mean = op.apply(x, w, b)
    w_squared = w.square() if sx is not None else w
    x_squared = x.square() if sw is not None else x
    variance = None
    if sw is not None:
        variance = op.apply(x_squared if sx is None else x_squared + sx, sw, sb)
    if sx is not None:
        from_x = op.apply(sx, w_squared, sb if sw is None else None)
        variance = from_x if variance is None else variance.add_(from_x)
    if variance is None:
        assert sb is not None  # otherwise nothing is Gaussian and there is no rule to apply
        variance = op.apply(torch.zeros_like(x), w, sb)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_x = to_w = to_b = None
        if nx is not None:
            to_x = op.to_left(delta, x, w), op.to_left(eta, x, w_squared)
        if nw is not None:
            to_w = op.to_right(delta, x, w), op.to_right(eta, x_squared, w)
        if nb is not None and op.to_bias is not None:
            to_b = op.to_bias(delta), op.to_bias(eta)
        return to_x, to_w, to_b

    tape = tape_of(left, right, bias)
    return tape.result(op.name, mean, variance, (nx, nw, nb), to_sources)


def _rows(x: Tensor) -> Tensor:
    """Flattens all axes but the last, (*, n) to (m, n); a vector is one row."""
    return x.reshape(-1, x.shape[-1])


LINEAR = Bilinear(
    "linear",
    F.linear,
    to_left=lambda result, left, right: result @ right,
    to_right=lambda result, left, right: _rows(result).mT @ _rows(left),
    to_bias=lambda result: _rows(result).sum(0),
)
"""`x wᵀ + b`, x (..., in), w (out, in)."""


@rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> GaussianTensor:
    """A linear layer."""
    return product(LINEAR, input, weight, bias)


def each(value: Any, num: int) -> list[int]:
    """One number for each dimension, from one number or a sequence."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * num if len(values) == 1 else values


def padded(padding: Any, weight: Tensor, dilation: list[int]) -> list[int] | None:
    """Torch's padding, numbers or a word, as numbers; None if the two sides differ."""
    if padding != "same":
        return each(0 if padding == "valid" else padding, len(dilation))
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return None if any(r % 2 for r in reach) else [r // 2 for r in reach]


def convolution(*options: Any) -> Bilinear:
    """A convolution with bias; `options` are those of `torch.convolution`, in its order."""
    backward = torch.ops.aten.convolution_backward
    return Bilinear(
        "convolution",
        lambda left, right, bias=None: torch.convolution(left, right, bias, *options),
        lambda *tensors: backward(*tensors, None, *options, [True, False, False])[0],
        lambda *tensors: backward(*tensors, None, *options, [False, True, False])[1],
        lambda result: result.transpose(0, 1).flatten(1).sum(1),
    )


_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
_PLAIN = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")


def _convolution(
    num: int, transposed: bool, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> GaussianTensor:
    """A convolution in `num` dimensions, with torch's options in its order."""
    if input.ndim != num + 2:
        raise ValueError(
            f"A convolution in {num} dimensions needs examples and channels first, "
            f"{num + 2} axes, got {tuple(input.shape)}."
        )
    names = _TRANSPOSED if transposed else _PLAIN
    options = _DEFAULTS | dict(zip(names, args, strict=False)) | kwargs
    stride, dilation, extra = (
        each(options[name], num) for name in ("stride", "dilation", "output_padding")
    )
    padding = padded(options["padding"], weight, dilation)
    if padding is None:
        raise ValueError(
            f"padding='same' with kernels of even size {tuple(weight.shape[2:])} pads one side "
            "more than the other, which has no moment rule; give the padding as numbers."
        )
    op = convolution(stride, padding, dilation, transposed, extra, options["groups"])
    return product(op, input, weight, bias)


for _num in (1, 2, 3):
    rule(getattr(F, f"conv{_num}d"))(partial(_convolution, _num, False))
    rule(getattr(F, f"conv_transpose{_num}d"))(partial(_convolution, _num, True))
