"""Batches of a stack in which some nets have fewer examples than others and the rest is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods._weighted import WeightedTensor
from bayesrule.tensors.inputs import mapped


def first_examples(sizes: Sequence[int], num: int, most: int) -> Tensor | None:
    """A mask (num, most) of each net's first `sizes` examples; None if they are all of them."""
    counts = [int(size) for size in sizes]
    if len(counts) != num or min(counts) < 1 or max(counts) > most:
        raise ValueError(f"{num} nets need {num} sizes from 1 to {most}, got {counts}.")
    if min(counts) == most:
        return None
    return torch.arange(most) < torch.tensor(counts).unsqueeze(1)


def examples_with_targets(y: Tensor) -> Tensor | None:
    """A mask of the examples with a target; None if all have one or if a GPU would have to wait."""
    if not y.is_floating_point() or y.device.type != "cpu" or not y.isnan().any():
        return None
    present = ~y.isnan().reshape(*y.shape[:2], -1).all(2)
    empty = (~present.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"Net {empty[0]} has no target in this batch: all of them are NaN. Batches of a stack "
            "hold at least one example of each net."
        )
    return present


def filled_up(part: Any, present: Tensor) -> Any:
    """Replaces the padding of each net by copies of its first present example."""
    if not isinstance(part, Tensor):
        return mapped(part, lambda leaf: filled_up(leaf, present))
    if isinstance(part, WeightedTensor):
        return part.each(lambda leaf: filled_up(leaf, present))
    first = present.int().argmax(1)
    rows = part[torch.arange(len(part), device=part.device), first].unsqueeze(1)
    return torch.where(present.reshape(*present.shape, *[1] * (part.ndim - 2)), part, rows)
