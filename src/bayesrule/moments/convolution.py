"""Convolutions of Gaussians: plain and transposed, in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.product import Convolution, product
from bayesrule.moments.tensor import GaussianTensor, parts, rule


def each(value: Any, num: int) -> list[int]:
    """One number for each dimension."""
    given = list(value) if isinstance(value, Sequence) else [value]
    return given * num if len(given) == 1 else given


def _padding(padding: Any, weight: Tensor, dilation: list[int], num: int) -> list[int]:
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


def _batched(x: Any, num: int) -> None:
    if x.ndim != num + 2:
        raise ValueError(
            f"A convolution in {num} dimensions needs examples and channels first, "
            f"{num + 2} axes, got {tuple(x.shape)}."
        )


def _plain(num: int) -> Callable[..., GaussianTensor]:
    def convolve(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> GaussianTensor:
        _batched(input, num)
        steps, spread = each(stride, num), each(dilation, num)
        pad = _padding(padding, parts(weight)[0], spread, num)
        return product(Convolution(steps, pad, spread, groups), input, weight, bias)

    return convolve


def _transposed(num: int) -> Callable[..., GaussianTensor]:
    def convolve(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> GaussianTensor:
        _batched(input, num)
        steps, pad, spread = each(stride, num), each(padding, num), each(dilation, num)
        extra = each(output_padding, num)
        op = Convolution(steps, pad, spread, groups, transposed=True, output_padding=extra)
        return product(op, input, weight, bias)

    return convolve


for _num, _function, _back in (
    (1, F.conv1d, F.conv_transpose1d),
    (2, F.conv2d, F.conv_transpose2d),
    (3, F.conv3d, F.conv_transpose3d),
):
    rule(_function)(_plain(_num))
    rule(_back)(_transposed(_num))
