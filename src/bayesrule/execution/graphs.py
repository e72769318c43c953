"""CUDA graphs: work on tensors that stay where they are, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from bayesrule.tensors import tree

T = TypeVar("T")
_REHEARSALS = 3


def captured(
    work: Callable[[], T],
    rehearse: Callable[[], object],
    generators: Sequence[Generator] = (),
) -> tuple[torch.cuda.CUDAGraph, T]:
    """A graph that does the work anew at each `replay`, and what the work returned.

    `rehearse` does the same work on tensors that nobody needs, so that what torch sets up at the
    first call is not captured. Random numbers of the given generators, and of torch's own, go on
    from replay to replay.
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
    """Copies every tensor of one tree into the same place of another."""
    values, places, tensors = dict(tree.leaves(source)), [], []
    for name, place in tree.leaves(target):
        value = values.get(name)
        if isinstance(place, Tensor) and isinstance(value, Tensor) and value is not place:
            places.append(place)
            tensors.append(value)
    if places:
        torch._foreach_copy_(places, _apart(tensors, places))


def _apart(tensors: list[Tensor], places: list[Tensor]) -> list[Tensor]:
    """The tensors, with copies of those that are in the memory of a place to be written to."""
    written = {place.untyped_storage().data_ptr() for place in places}
    return [t.clone() if t.untyped_storage().data_ptr() in written else t for t in tensors]
