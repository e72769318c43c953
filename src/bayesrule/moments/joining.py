"""Joining and splitting of Gaussian tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.shape import both
from bayesrule.moments.tensor import GaussianTensor, Innovation, full_parts, rule, tape_of

Join = Callable[[list[Tensor]], Tensor]
"""One tensor from several."""


def _joined(
    name: str, tensors: Sequence[Any], join: Join, split: Callable[[Tensor], Sequence[Tensor]]
) -> GaussianTensor:
    """Tensors put together, plain ones as Gaussians without variance; `split` undoes `join`."""
    means, variances, nodes = zip(*(full_parts(one) for one in tensors), strict=True)

    def to_sources(delta: Tensor, eta: Tensor) -> list[Innovation]:
        pieces = zip(split(delta), split(eta), means, strict=True)
        return [(d.to(m.dtype), e.to(m.dtype)) for d, e, m in pieces]

    tape = tape_of(*tensors)
    return tape.result(name, join(list(means)), join(list(variances)), nodes, to_sources)


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> GaussianTensor:
    """Tensors one after the other along an axis."""
    along = dim if axis is None else axis
    lengths = [one.shape[along] for one in tensors]
    return _joined("cat", tensors, partial(torch.cat, dim=along), lambda t: t.split(lengths, along))


@rule(torch.stack)
def stack(tensors: Sequence[Any], dim: int = 0) -> GaussianTensor:
    """Tensors side by side along a new axis."""
    return _joined("stack", tensors, lambda ts: torch.stack(ts, dim), lambda t: t.unbind(dim))


@rule(torch.hstack, torch.column_stack)
def hstack(tensors: Sequence[Any]) -> GaussianTensor:
    """Tensors one after the other along the second axis, vectors along their only one."""
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


@rule(torch.vstack)
def vstack(tensors: Sequence[Any]) -> GaussianTensor:
    """Tensors one below the other along the first axis, vectors as rows."""
    return cat([one.unsqueeze(0) if one.ndim == 1 else one for one in tensors], 0)


def _pieces(
    name: str, x: GaussianTensor, cut: Callable[[Tensor], Sequence[Tensor]], join: Join
) -> tuple[GaussianTensor, ...]:
    """The pieces of a tensor; their innovations go back together, as one tensor."""
    means, variances = cut(x.centre), cut(x.variance)
    learned: list[Innovation | None] = [None] * len(means)

    def together(*_: Tensor) -> tuple[Innovation]:
        pieces = zip(learned, means, strict=True)
        filled = [(torch.zeros_like(m),) * 2 if one is None else one for one, m in pieces]
        return ((join([delta for delta, _ in filled]), join([eta for _, eta in filled])),)

    # The pieces come off the tape before the whole tensor. Each puts its innovation into `learned`
    # and gives the whole an empty one, without which the tape would skip it.
    whole = x.tape.result(name, x.centre, x.variance, (x.node,), together)
    nothing = x.centre.new_empty(0), x.centre.new_empty(0)

    def piece(i: int) -> GaussianTensor:
        def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
            learned[i] = delta, eta
            return (nothing,)

        return x.tape.result(name, means[i], variances[i], (whole.node,), to_sources)

    return tuple(piece(i) for i in range(len(means)))


def _cut(name: str, *keywords: str) -> Callable[..., tuple[GaussianTensor, ...]]:
    """The rule of a method that cuts a tensor along an axis; `keywords` name its sizes."""

    def apply(input: GaussianTensor, *args: Any, dim: int = 0, **kwargs: Any) -> Any:
        sizes, *rest = [kwargs.pop(key) for key in keywords if key in kwargs] + list(args)
        axis = rest[0] if rest else dim
        cut = methodcaller(name, sizes, axis)
        return _pieces(name, input, cut, partial(torch.cat, dim=axis))

    return apply


rule(*both("split"))(_cut("split", "split_size", "split_size_or_sections"))
rule(*both("split_with_sizes"))(_cut("split", "split_sizes"))
rule(*both("chunk"))(_cut("chunk", "chunks"))
_by_index = ("indices_or_sections", "indices", "sections")
rule(*both("tensor_split"))(_cut("tensor_split", *_by_index))


@rule(*both("unbind"))
def unbind(input: GaussianTensor, dim: int = 0) -> tuple[GaussianTensor, ...]:
    """Each slice along an axis; also what a loop over a tensor gives."""
    return _pieces("unbind", input, lambda t: t.unbind(dim), lambda ts: torch.stack(ts, dim))
