"""CUDA graphs: work on tensors that keep their place in memory, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from bayesrule.tensors import tree, vectors

T = TypeVar("T")
_REHEARSALS = 3


def captured(
    work: Callable[[], T], rehearse: Callable[[], object], generators: Sequence[Generator] = ()
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph that repeats the work at each `replay`, and the results of the work.

    `rehearse` does the same work on spare tensors, so that what torch sets up in its first calls is
    not captured. Random numbers of the `generators`, and of torch's own, continue from replay to
    replay.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_REHEARSALS):
            rehearse()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def copy_into(target: object, source: object) -> None:
    """Copies every tensor of one tree into the tensor of the same name in another."""
    places, values = _tensors(target), _tensors(source)
    if not places.keys() <= values.keys():
        # Only one of them is in rows.
        places, values = tree.tensors(target), tree.tensors(source)
    moved = {k: v for k, v in values.items() if k in places and v is not places[k]}
    if moved:
        targets = [places[name] for name in moved]
        torch._foreach_copy_(targets, _apart(list(moved.values()), targets))


def _tensors(nested: object) -> dict[str, Tensor]:
    """All tensors of a nested object by path; parameters in one row count as one tensor."""
    tensors = {}
    for path, part in tree.parts(nested, vectors.Flat | Tensor):
        in_row = isinstance(part, vectors.Flat)
        tensors[f"{path}/row" if in_row else path] = part.row if in_row else part
    return tensors


def _apart(tensors: list[Tensor], places: list[Tensor]) -> list[Tensor]:
    """Clones the tensors that share memory with a place that will be overwritten."""
    written = {place.untyped_storage().data_ptr() for place in places}
    return [t.clone() if t.untyped_storage().data_ptr() in written else t for t in tensors]


def in_rows(nested: T) -> T:
    """A copy of a nested object in which each dictionary of tensors is one row."""
    if isinstance(nested, dict):
        floats = [v for v in nested.values() if isinstance(v, Tensor) and v.is_floating_point()]
        if len(floats) == len(nested) and len({(v.dtype, v.device) for v in floats}) == 1:
            return vectors.Flat.of(nested)  # type: ignore[return-value]
    new = {name: in_rows(child) for name, child in tree.children(nested)}
    return tree.with_children(nested, new)
