"""Whether recorded layers follow each other with no way around any of them."""

from __future__ import annotations

from torch.autograd.graph import Node

from bayesrule.curvature.recorder import Use
from bayesrule.matrices.flow import shortcut, wrong_order


def broken_chain(uses: list[Use], end: Node | None, weights: tuple[str, ...]) -> str | None:
    """Why the layers with these weights, in this order, are no chain; None where they are."""
    called = [use.weight for use in uses if use.weight in weights]
    if called != list(weights):
        return wrong_order(called)
    nodes = {use.weight: use.edge.node for use in uses if use.weight and use.edge is not None}
    if end is None or any(name not in nodes for name in weights):
        return "some layers have no part in the outputs"
    return shortcut(weights, nodes, end, lambda node: [one for one, _ in node.next_functions])
