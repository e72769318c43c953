"""Whether recorded layers follow each other with no way around any of them."""

from __future__ import annotations

from itertools import pairwise

from torch.autograd.graph import Node

from bayesrule.curvature.recorder import Use


def broken_chain(uses: list[Use], end: Node | None, weights: tuple[str, ...]) -> str | None:
    """Why the layers with these weights, in this order, are no chain; None where they are.

    In a chain the way back from the network's end, and from each layer, meets the layer before it
    first and no earlier one: there is no shortcut.
    """
    called = [use.weight for use in uses if use.weight in weights]
    if called != list(weights):
        return f"the layers are called in the order {', '.join(str(name) for name in called)}"
    nodes = {use.weight: use.edge.node for use in uses if use.edge is not None}
    if end is None or len(nodes) < len(weights):
        return "some layers have no part in the outputs"
    order = [*weights, "the output"]
    starts = {**nodes, "the output": end}
    for before, name in pairwise(order):
        earlier = order[: order.index(before)]
        found = _met(starts[name], nodes[before], [nodes[k] for k in earlier], name == order[-1])
        if found is not None:
            return f"{earlier[found]!r} has a way to {name} around {before!r}"
    return None


def _met(start: Node, stop: Node, others: list[Node], inclusive: bool) -> int | None:
    """Which of `others` is met on the way back from a node without going through `stop`."""
    queue = [start] if inclusive else [node for node, _ in start.next_functions]
    seen: set[Node] = set()
    while queue:
        node = queue.pop()
        if node is None or node is stop or node in seen:
            continue
        if node in others:
            return others.index(node)
        seen.add(node)
        queue += [following for following, _ in node.next_functions]
    return None
