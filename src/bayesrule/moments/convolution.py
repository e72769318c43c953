"""Convolutions of Gaussians: plain and transposed, in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.product import convolution, product
from bayesrule.moments.tensor import GaussianTensor, parts, rule


def each(value: Any, num: int) -> list[int]:
    """One number for each dimension."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values * num if len(values) == 1 else values


def _padding(padding: Any, weight: Tensor, dilation: list[int], num: int) -> list[int]:
    """The padding as numbers; torch also takes it as a word."""
    if padding == "valid":
        return [0] * num
    if padding != "same":
        return each(padding, num)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(r % 2 for r in reach):
        raise ValueError(
            f"padding='same' with kernels of even size {tuple(weight.shape[2:])} pads one side "
            "more than the other, which has no moment rule; give the padding as numbers."
        )
    return [r // 2 for r in reach]


def _check_axes(x: Any, num: int) -> None:
    if x.ndim != num + 2:
        raise ValueError(
            f"A convolution in {num} dimensions needs examples and channels first, "
            f"{num + 2} axes, got {tuple(x.shape)}."
        )


_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
_PLAIN = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")


def _convolution(num: int, names: Sequence[str], *, transposed: bool) -> Callable[..., Any]:
    """The rule of a convolution in `num` dimensions, whose options have these names, in order."""

    def apply(
        input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
    ) -> GaussianTensor:
        options = _DEFAULTS | dict(zip(names, args, strict=False)) | kwargs
        _check_axes(input, num)
        stride, dilation, extra = (
            each(options[name], num) for name in ("stride", "dilation", "output_padding")
        )
        padding = _padding(options["padding"], parts(weight)[0], dilation, num)
        op = convolution(stride, padding, dilation, options["groups"], transposed, extra)
        return product(op, input, weight, bias)

    return apply


for _num in (1, 2, 3):
    rule(getattr(F, f"conv{_num}d"))(_convolution(_num, _PLAIN, transposed=False))
    rule(getattr(F, f"conv_transpose{_num}d"))(_convolution(_num, _TRANSPOSED, transposed=True))
