"""Batches of a stack in which some nets have fewer examples than others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods._weighted import WeightedTensor
from bayesrule.tensors.inputs import mapped


def first_examples(sizes: Sequence[int], num: int, most: int) -> Tensor | None:
    """The first examples of each net, as many as it says."""
    given = [int(size) for size in sizes]
    if len(given) != num or min(given) < 1 or max(given) > most:
        raise ValueError(f"{num} nets have as many sizes from 1 to {most}, got {given}.")
    if min(given) == most:
        return None
    return torch.arange(most) < torch.tensor(given).unsqueeze(1)


def examples_with_targets(y: Tensor) -> Tensor | None:
    """The examples that have a target; None where all have, and where asking takes long."""
    if not y.is_floating_point() or y.device.type != "cpu" or not y.isnan().any():
        return None
    found = ~y.isnan().reshape(*y.shape[:2], -1).all(2)
    empty = (~found.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"Net {empty[0]} has no target in this batch: all of them are NaN. Batches of a stack "
            "hold at least one example of each net."
        )
    return found


def filled_up(part: Any, own: Tensor) -> Any:
    """Examples that are not a net's own become copies of its first, whatever they were."""
    if not isinstance(part, Tensor):
        return mapped(part, lambda one: filled_up(one, own))
    if isinstance(part, WeightedTensor):
        return part.each(lambda one: filled_up(one, own))
    first = own.int().argmax(1)
    rows = part[torch.arange(len(part), device=part.device), first].unsqueeze(1)
    return torch.where(own.reshape(*own.shape, *[1] * (part.ndim - 2)), part, rows)
