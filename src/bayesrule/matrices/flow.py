"""The way of the data through a module's layers, read from its code before there are any inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

from torch import fx, nn

N = TypeVar("N")

Flow = tuple[tuple[str, tuple[int, ...]], ...]
"""For each step of a module its name, and the places of those steps whose results it takes.

The name of a layer is that of its weight, other steps have none; the last step is the output.
"""


def flow_of(model: nn.Module) -> Flow | None:
    """The steps of a module, None where its code cannot be read without inputs.

    >>> flow_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    (('', ()), ('0.weight', (0,)), ('', (1,)), ('', (2,)))
    """
    try:
        with _left_as_it_is(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(fx.Tracer().trace(model).nodes)
    except Exception:
        # Any code may stand there, such as a choice that depends on the inputs.
        return None
    if any(node.op == "get_attr" for node in nodes):
        return None  # Weights may be at work outside of their layers.
    place = {node: i for i, node in enumerate(nodes)}
    layers = [f"{node.target}.weight" if node.op == "call_module" else "" for node in nodes]
    known = dict(model.named_parameters())
    names = [name if name in known else "" for name in layers]
    inputs = [tuple(place[before] for before in node.all_input_nodes) for node in nodes]
    return tuple(zip(names, inputs, strict=True))


@contextmanager
def _left_as_it_is(model: nn.Module) -> Iterator[None]:
    """A module may keep what it sees, which here are no tensors."""
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for now, then in before:
            now.clear()
            now.update(then)


def broken_flow(flow: Flow, weights: Sequence[str]) -> str | None:
    """Why the layers with these weights, in this order, are no chain; None where they are."""
    called = [name for name, _ in flow if name in weights]
    if called != list(weights):
        return wrong_order(called)
    nodes = {name: i for i, (name, _) in enumerate(flow) if name in weights}
    return shortcut(weights, nodes, len(flow) - 1, lambda place: flow[place][1])


def wrong_order(called: Sequence[str | None]) -> str:
    """What is said of layers that are called in another order, or not once each."""
    return f"the layers are called in the order {', '.join(str(name) for name in called)}"


def shortcut(
    order: Sequence[str], nodes: Mapping[str, N], end: N, back: Callable[[N], Iterable[N | None]]
) -> str | None:
    """Which named node has a way around the next, in words; None for a chain.

    In a chain the way back from the end, and from each node, meets the node before it first and no
    earlier one. `back` gives the nodes that a node takes its inputs from.
    """
    names = [*order, "the output"]
    for before, name in pairwise(names):
        earlier = names[: names.index(before)]
        starts = [end] if name == names[-1] else back(nodes[name])
        found = _met(starts, nodes[before], [nodes[k] for k in earlier], back)
        if found is not None:
            return f"{earlier[found]!r} has a way to {name} around {before!r}"
    return None


def _met(
    starts: Iterable[N | None], stop: N, others: list[N], back: Callable[[N], Iterable[N | None]]
) -> int | None:
    """Which of `others` is met on the way back without going through `stop`."""
    queue, seen = list(starts), set[N]()
    while queue:
        node = queue.pop()
        if node is None or node == stop or node in seen:
            continue
        if node in others:
            return others.index(node)
        seen.add(node)
        queue += back(node)
    return None
