"""Which parameters make up a layer with a matrix of weights, and which layers are a chain."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesrule.matrices.layer_rows import Place
from bayesrule.tensors.vectors import Shapes, shapes_of

N = TypeVar("N")
Pair = tuple[str, str | None]
Flow = tuple[tuple[str, tuple[int, ...]], ...]
"""For each step of a module its name, and the places of those steps whose results it takes.

The name of a layer is that of its weight, other steps have none; the last step is the output.
"""


def bias_of(weight: str) -> str:
    """The name that the bias of a weight would have.

    >>> bias_of("net.0.weight"), bias_of("lstm.weight_ih_l0")
    ('net.0.bias', 'lstm.bias_ih_l0')
    """
    head, dot, tail = weight.rpartition(".")
    return head + dot + tail.replace("weight", "bias")


def by_shape(shapes: Shapes) -> tuple[Pair, ...]:
    """Every parameter with two axes or more, and its bias, told by name and shape alone."""
    return tuple(
        (name, bias if shapes.get(bias := bias_of(name)) == shape[:1] else None)
        for name, shape in shapes.items()
        if len(shape) >= 2
    )


def by_module(model: nn.Module) -> tuple[Pair, ...]:
    """Weights and biases of a module's linear, convolution, attention and recurrent layers.

    Kernels with groups, transposed convolutions, embeddings and norms are left out.
    """
    pairs: list[Pair] = []
    for prefix, module in model.named_modules():
        if _has_matrices(module):
            own = dict(module.named_parameters(prefix, recurse=False))
            pairs += by_shape(shapes_of(own))
    first = dict(model.named_parameters())
    return tuple(pair for pair in pairs if pair[0] in first)


def _has_matrices(module: nn.Module) -> bool:
    if isinstance(module, _ConvNd):
        return module.groups == 1 and not isinstance(module, _ConvTransposeNd)
    kinds = nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase
    return isinstance(module, kinds)


def chain_by_module(model: nn.Module) -> tuple[Pair, ...]:
    """The linear and convolution layers of a module in their order; a ValueError for any other."""
    uses = Counter(id(v) for m in model.modules() for v in m._parameters.values() if v is not None)
    for prefix, module in model.named_modules():
        own = {k: v for k, v in module._parameters.items() if v is not None and v.requires_grad}
        plain = isinstance(module, nn.Linear | _ConvNd) and _has_matrices(module)
        if own and not plain:
            where = repr(prefix) if prefix else "the module"
            raise no_chain(f"{where} ({type(module).__name__}) is neither")
        tied = [k for k, v in own.items() if uses[id(v)] > 1]
        if tied:
            raise no_chain(f"'{prefix}.{tied[0]}' belongs to several layers")
    return by_module(model)


def no_chain(reason: str) -> ValueError:
    """What is said of a network that is no chain of layers."""
    return ValueError(
        "BlockTridiagonal() is for chains of linear and convolution layers, each used once, one "
        f"after the other, but {reason}. Use Kronecker(), which takes every layer for itself."
    )


def places(pairs: tuple[Pair, ...], shapes: Shapes) -> list[Place]:
    """The pairs whose weight is among the given parameters, with their shapes."""
    return [
        Place(weight, bias if bias in shapes else None, shapes[weight])
        for weight, bias in pairs
        if weight in shapes
    ]


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
