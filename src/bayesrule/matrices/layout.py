"""Which parameters form a layer with a matrix of weights, and which layers form a chain."""

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
"""For each step of a module its name, and the indices of the steps whose results it takes.

A layer is named by its weight, all other steps by ""; the last step is the output.
"""


def bias_of(weight: str) -> str:
    """The name that the bias of a weight would have.

    >>> bias_of("net.0.weight"), bias_of("lstm.weight_ih_l0")
    ('net.0.bias', 'lstm.bias_ih_l0')
    """
    head, dot, tail = weight.rpartition(".")
    return head + dot + tail.replace("weight", "bias")


def by_shape(shapes: Shapes) -> tuple[Pair, ...]:
    """Every parameter with two axes or more and its bias, found by name and shape alone."""
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
            params = dict(module.named_parameters(prefix, recurse=False))
            pairs += by_shape(shapes_of(params))
    # Of tied weights the model lists only the first name.
    names = dict(model.named_parameters())
    return tuple((weight, bias) for weight, bias in pairs if weight in names)


def _has_matrices(module: nn.Module) -> bool:
    if isinstance(module, _ConvNd):
        return module.groups == 1 and not isinstance(module, _ConvTransposeNd)
    kinds = nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase
    return isinstance(module, kinds)


def chain_by_module(model: nn.Module) -> tuple[Pair, ...]:
    """The linear and convolution layers of a module in their order; a ValueError for any other."""
    uses = Counter(id(v) for m in model.modules() for v in m._parameters.values() if v is not None)
    for prefix, module in model.named_modules():
        params = {k: v for k, v in module._parameters.items() if v is not None and v.requires_grad}
        fits = isinstance(module, nn.Linear | _ConvNd) and _has_matrices(module)
        if params and not fits:
            where = repr(prefix) if prefix else "the module"
            raise no_chain(f"{where} ({type(module).__name__}) is neither")
        tied = [k for k, v in params.items() if uses[id(v)] > 1]
        if tied:
            raise no_chain(f"'{prefix}.{tied[0]}' belongs to several layers")
    return by_module(model)


def no_chain(reason: str) -> ValueError:
    """The error for a network that is not a chain of layers."""
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
    """The steps of a module; None if its code cannot be traced without inputs.

    >>> flow_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    (('', ()), ('0.weight', (0,)), ('', (1,)), ('', (2,)))
    """
    try:
        with _unchanged(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(fx.Tracer().trace(model).nodes)
    except Exception:
        # The module may run any code, such as a branch that depends on the inputs.
        return None
    if any(node.op == "get_attr" for node in nodes):
        return None  # Weights may be used outside of their layers.
    index = {node: i for i, node in enumerate(nodes)}
    layers = [f"{node.target}.weight" if node.op == "call_module" else "" for node in nodes]
    params = dict(model.named_parameters())
    names = [name if name in params else "" for name in layers]
    inputs = [tuple(index[source] for source in node.all_input_nodes) for node in nodes]
    return tuple(zip(names, inputs, strict=True))


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the attributes of all modules: tracing may leave proxies in them."""
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for current, original in attributes:
            current.clear()
            current.update(original)


def broken_flow(flow: Flow, weights: Sequence[str]) -> str | None:
    """Why the layers with these weights do not form a chain in this order; None if they do."""
    called = [name for name, _ in flow if name in weights]
    if called != list(weights):
        return wrong_order(called)
    nodes = {name: i for i, (name, _) in enumerate(flow) if name in weights}
    return shortcut(weights, nodes, len(flow) - 1, lambda place: flow[place][1])


def wrong_order(called: Sequence[str | None]) -> str:
    """The reason for layers that are called in another order, or not exactly once."""
    return f"the layers are called in the order {', '.join(str(name) for name in called)}"


def shortcut(
    order: Sequence[str], nodes: Mapping[str, N], end: N, back: Callable[[N], Iterable[N | None]]
) -> str | None:
    """Which named node has a path that bypasses the next one, in words; None for a chain.

    In a chain, every path back from the end, and from each node, meets the node before it ahead of
    any earlier one. `back` gives the nodes that a node takes its inputs from.
    """
    names = [*order, "the output"]
    for before, name in pairwise(names):
        earlier = names[: names.index(before)]
        starts = [end] if name == names[-1] else back(nodes[name])
        reached = _reached(starts, nodes[before], [nodes[k] for k in earlier], back)
        if reached is not None:
            return f"{earlier[reached]!r} has a way to {name} around {before!r}"
    return None


def _reached(
    starts: Iterable[N | None], stop: N, others: list[N], back: Callable[[N], Iterable[N | None]]
) -> int | None:
    """The index of the first of `others` that is reached without going through `stop`."""
    queue, visited = list(starts), set[N]()
    while queue:
        node = queue.pop()
        if node is None or node == stop or node in visited:
            continue
        if node in others:
            return others.index(node)
        visited.add(node)
        queue += back(node)
    return None
