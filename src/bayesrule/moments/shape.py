"""Rules for operations that only move elements: reshape, convert, index, join, split.

Each element of a result is one element of its source, so means and variances move alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    Map,
    NoRule,
    full_parts,
    mapped,
    parts,
    rule,
    summed_like,
    tape_of,
)


def adjoint(move: Map, shape: torch.Size) -> Map:
    """The adjoint of a linear map on tensors of this shape, by autograd at zero."""
    return lambda t: torch.func.vjp(move, t.new_zeros(shape))[1](t)[0]


def moved(name: str, x: GaussianTensor, move: Map, back: Map | None = None) -> GaussianTensor:
    """Applies `move` to means and variances; `back` is its adjoint, by autograd if None."""
    to_x = back or adjoint(move, x.centre.shape)
    return mapped(name, x, move(x.centre), move(x.variance), to_x, to_x)


def both(name: str) -> list[Any]:
    """The tensor method and the torch function of a name, as far as they exist."""
    candidates = (getattr(home, name, None) for home in (Tensor, torch))
    return [function for function in candidates if function is not None]


def moving(
    name: str,
    back: Callable[[Map, torch.Size], Map] = adjoint,
    function: Callable[..., Tensor] | None = None,
) -> Callable[..., GaussianTensor]:
    """The rule of a function that only moves elements; by default torch's of this name.

    `back` makes the adjoint from the move and the shape of the input.
    """
    plain = both(name)[0] if function is None else function

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        def move(t: Tensor) -> Tensor:
            return plain(t, *args, **kwargs)

        return moved(name, input, move, back(move, input.centre.shape))

    return apply


def _same_order(move: Map, shape: torch.Size) -> Map:
    return methodcaller("reshape", shape)


for _name in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"):
    rule(*both(_name))(moving(_name, _same_order))
# A Gaussian's memory may be strided (channels last), where only reshape works.
rule(Tensor.view)(moving("reshape", _same_order))
rule(Tensor.view_as, Tensor.reshape_as)(lambda input, other: input.reshape(other.shape))


def _own_inverse(move: Map, shape: torch.Size) -> Map:
    return move


for _name in ("transpose", "swapaxes", "swapdims", "t", "adjoint", "flip", "fliplr", "flipud"):
    rule(*both(_name))(moving(_name, _own_inverse))
for _name in ("T", "mT", "H", "mH"):
    rule(getattr(Tensor, _name).__get__)(moving(_name, _own_inverse, attrgetter(_name)))
# Repeats axes of length one; the copies are taken as independent of each other.
_expand = moving("expand", lambda move, shape: methodcaller("sum_to_size", shape))
rule(Tensor.expand, *both("broadcast_to"))(_expand)
rule(Tensor.expand_as)(lambda input, other: input.expand(other.shape))


@rule(*both("permute"))
def permute(input: GaussianTensor, *dims: Any, **kwargs: Any) -> GaussianTensor:
    """Axes in another order."""
    axes = kwargs.get("dims", dims[0] if dims and not isinstance(dims[0], int) else dims)
    order = [axis % input.centre.ndim for axis in axes]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved("permute", input, lambda t: t.permute(order), lambda t: t.permute(inverse))


@rule(*both("movedim"), *both("moveaxis"))
def movedim(input: GaussianTensor, source: Any, destination: Any) -> GaussianTensor:
    """Axes moved to other positions."""
    there, back = (source, destination), (destination, source)
    return moved("movedim", input, lambda t: t.movedim(*there), lambda t: t.movedim(*back))


@rule(Tensor.contiguous, Tensor.clone, torch.clone)
def contiguous(
    input: GaussianTensor, memory_format: torch.memory_format | None = None
) -> GaussianTensor:
    """The same Gaussians; they never change in place, so no copy is needed."""
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return input
    convert = methodcaller("contiguous", memory_format=memory_format)
    return moved("contiguous", input, convert, lambda t: t)


@rule(Tensor.detach, torch.detach)
def detach(input: GaussianTensor) -> GaussianTensor:
    """The same Gaussians; no innovation goes back through them."""
    return GaussianTensor(input.centre.detach(), input.variance.detach(), input.tape, None)


def _converted(name: str, input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
    """Converts a Gaussian tensor to another type or device, by the tensor method of this name."""
    plain = [parts(value)[0] for value in args]
    named = {key: parts(value)[0] for key, value in kwargs.items()}
    convert, like = methodcaller(name, *plain, **named), input.centre
    mean = convert(like)
    if mean is like:
        return input
    if not mean.is_floating_point():
        raise NoRule(
            f"A Gaussian tensor cannot become {mean.dtype}: Gaussians are real numbers. "
            "Use a floating type."
        )
    return moved(name, input, convert, lambda t: t.to(like.device, like.dtype))


for _name in ("to", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"):
    rule(getattr(Tensor, _name))(partial(_converted, _name))


def _formed(function: Any, input: GaussianTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A plain tensor from a function that only reads shape and type."""
    return function(input.centre, *args, **kwargs)


for _name in (
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
    "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor",
):  # fmt: skip
    rule(*both(_name))(partial(_formed, both(_name)[0]))


def _basic(index: Any) -> bool:
    """Whether an index cannot repeat elements: only integers, slices, None and ellipses."""
    indices = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in indices)


@rule(Tensor.__getitem__)
def getitem(input: GaussianTensor, index: Any) -> GaussianTensor:
    """Indexing by integers, slices, index tensors or masks."""
    before = input.centre.shape

    def back(t: Tensor) -> Tensor:
        result = t.new_zeros(before)
        result[index] = t
        return result

    return moved("getitem", input, lambda t: t[index], back if _basic(index) else None)


for _name in (
    "narrow", "select", "index_select", "gather", "take_along_dim", "roll", "rot90", "tile",
    "diagonal", "tril", "triu", "masked_select", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "select_copy", "repeat_interleave", "repeat", "unfold",
):  # fmt: skip
    rule(*both(_name))(moving(_name))
rule(F.unfold)(moving("unfold", function=F.unfold))


@rule(F.embedding)
def embedding(
    input: Tensor, weight: GaussianTensor, padding_idx: int | None = None, **options: Any
) -> GaussianTensor:
    """Rows `input` of the table; innovations of a repeated row add up, the padding row has none."""
    max_norm, by_frequency = options.get("max_norm"), options.get("scale_grad_by_freq", False)
    if max_norm is not None or by_frequency:
        raise ValueError(
            f"An embedding with max_norm={max_norm}, scale_grad_by_freq={by_frequency} has no "
            "moment rule: both change what the weights learn. Leave them out."
        )
    rows = weight.centre.shape[0]
    padding = -1 if padding_idx is None else padding_idx % rows

    def back(t: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(t, input, rows, padding, False)

    return moved("embedding", weight, lambda t: F.embedding(input, t), back)


@rule(F.pad)
def pad(
    input: GaussianTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> GaussianTensor:
    """Padding with a number, which has no variance, or with elements of the input."""
    if mode != "constant":
        return moved("pad", input, lambda t: F.pad(t, pad, mode))
    back = partial(F.pad, pad=[-width for width in pad])
    mean, variance = F.pad(input.centre, pad, value=value), F.pad(input.variance, pad)
    return mapped("pad", input, mean, variance, back, back)


@rule(torch.where)
def where(condition: Tensor, input: Any, other: Any) -> GaussianTensor:
    """Chooses between the elements of two tensors by a plain condition."""
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


# Where the mask is true, the value has no variance.
rule(*both("masked_fill"))(lambda input, mask, value: where(mask, value, input))

Join = Callable[[Sequence[Tensor]], Tensor]
"""One tensor from several."""

Split = Callable[[Tensor], Sequence[Tensor]]
"""Several tensors from one."""


def _joined(name: str, tensors: Sequence[Any], join: Join, split: Split) -> GaussianTensor:
    """Joins tensors, plain ones as Gaussians of zero variance; `split` undoes `join`."""
    means, variances, nodes = zip(*(full_parts(x) for x in tensors), strict=True)

    def to_sources(delta: Tensor, eta: Tensor) -> list[Innovation]:
        pieces = zip(split(delta), split(eta), means, strict=True)
        return [(d.to(m.dtype), e.to(m.dtype)) for d, e, m in pieces]

    return tape_of(*tensors).result(name, join(means), join(variances), nodes, to_sources)


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> GaussianTensor:
    """Tensors one after the other along an axis."""
    along = dim if axis is None else axis
    # Torch skips empty vectors, whatever the shape of the other tensors.
    tensors = [x for x in tensors if tuple(x.shape) != (0,)]
    lengths = [x.shape[along] for x in tensors]
    return _joined("cat", tensors, partial(torch.cat, dim=along), lambda t: t.split(lengths, along))


@rule(torch.stack)
def stack(tensors: Sequence[Any], dim: int = 0, *, out: None = None) -> GaussianTensor:
    """Tensors side by side along a new axis; data loaders pass `out=None`."""
    return _joined("stack", tensors, partial(torch.stack, dim=dim), lambda t: t.unbind(dim))


def _vectors_stacked(dim: int, tensors: Sequence[Any]) -> GaussianTensor:
    """Tensors one after the other along an axis, vectors as rows (0) or columns (1)."""
    return cat([x.unsqueeze(dim) if x.ndim == 1 else x for x in tensors], dim)


rule(torch.hstack)(lambda tensors: cat(tensors, 0 if tensors[0].ndim == 1 else 1))
rule(torch.vstack)(partial(_vectors_stacked, 0))
rule(torch.column_stack)(partial(_vectors_stacked, 1))


def _pieces(name: str, x: GaussianTensor, split: Split, join: Join) -> tuple[GaussianTensor, ...]:
    """Splits a tensor; the innovations of the pieces go back together, as one tensor."""

    def to_whole(learned: list[Innovation]) -> tuple[Innovation]:
        deltas, etas = zip(*learned, strict=True)
        return ((join(deltas), join(etas)),)

    moments = list(zip(split(x.centre), split(x.variance), strict=True))
    return tuple(x.tape.results(name, moments, (x.node,), to_whole))


def _cut(
    name: str, input: GaussianTensor, *args: Any, dim: int = 0, **sizes: Any
) -> tuple[GaussianTensor, ...]:
    """Splits a tensor along an axis by the method of this name; sizes may be keywords."""
    size, axis, *_ = *sizes.values(), *args, dim
    cut = methodcaller(name, size, axis)
    return _pieces(name, input, cut, partial(torch.cat, dim=axis))


for _name in ("split", "chunk", "tensor_split"):
    rule(*both(_name))(partial(_cut, _name))
rule(*both("split_with_sizes"))(partial(_cut, "split"))


@rule(*both("unbind"))
def unbind(input: GaussianTensor, dim: int = 0) -> tuple[GaussianTensor, ...]:
    """Each slice along an axis, as in a loop over a tensor."""
    return _pieces("unbind", input, methodcaller("unbind", dim), partial(torch.stack, dim=dim))
