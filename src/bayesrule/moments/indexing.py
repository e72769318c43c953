"""Operations that pick elements: indexing, padding, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.shape import both, moved
from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    mapped,
    parts,
    rule,
    summed_like,
    tape_of,
)


def _basic(index: Any) -> bool:
    """Whether an index names each element once: whole numbers, slices, None and an ellipsis."""
    indices = index if isinstance(index, tuple) else (index,)
    return all(one is None or one is Ellipsis or type(one) in (int, slice) for one in indices)


@rule(Tensor.__getitem__)
def getitem(input: GaussianTensor, index: Any) -> GaussianTensor:
    """Some elements, by numbers, slices, index tensors or masks."""
    before = input.centre.shape

    def back(t: Tensor) -> Tensor:
        result = t.new_zeros(before)
        result[index] = t
        return result

    return moved("getitem", input, lambda t: t[index], back if _basic(index) else None)


def _picked(function: Callable[..., Tensor], name: str) -> Callable[..., GaussianTensor]:
    """The rule of a function each of whose results is one element of the input, or zero."""
    return lambda input, *args, **kwargs: moved(name, input, lambda t: function(t, *args, **kwargs))


for _name in (
    "narrow", "select", "index_select", "gather", "take_along_dim", "roll", "rot90", "tile",
    "diagonal", "tril", "triu", "masked_select", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "select_copy", "repeat_interleave",
):  # fmt: skip
    rule(*both(_name))(_picked(both(_name)[0], _name))
for _method in (Tensor.repeat, Tensor.unfold):
    rule(_method)(_picked(_method, _method.__name__))
rule(F.unfold)(_picked(F.unfold, "unfold"))


@rule(F.pad)
def pad(
    input: GaussianTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> GaussianTensor:
    """Padding with a number, which has no variance, or with elements of the input."""
    if mode != "constant":
        return moved("pad", input, lambda t: F.pad(t, pad, mode))
    crop = [-one for one in pad]

    def back(t: Tensor) -> Tensor:
        return F.pad(t, crop)

    mean, variance = F.pad(input.centre, pad, value=value), F.pad(input.variance, pad)
    return mapped("pad", input, mean, variance, back, back)


@rule(torch.where)
def where(condition: Tensor, input: Any, other: Any) -> GaussianTensor:
    """Elements of one tensor or another, as a plain condition says."""
    tape = tape_of(input, other)
    (x, sx, nx), (y, sy, ny) = parts(input), parts(other)
    mean = torch.where(condition, x, y)
    variance = torch.where(condition, 0.0 if sx is None else sx, 0.0 if sy is None else sy)

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        def to(like: Any, mask: Tensor) -> Innovation:
            first, second = (summed_like(t.where(mask, 0.0), like) for t in (delta, eta))
            return first, second

        return None if nx is None else to(x, condition), None if ny is None else to(y, ~condition)

    return tape.result("where", mean, variance.to(mean.dtype), (nx, ny), to_sources)


@rule(*both("masked_fill"))
def masked_fill(input: Any, mask: Tensor, value: Any) -> GaussianTensor:
    """A number without variance where the mask is true."""
    return where(mask, value, input)
