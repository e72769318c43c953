"""How often examples count by their class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.likelihoods._weighted import WeightedTensor, split, times


def class_weights(given: Sequence[float]) -> tuple[float, ...]:
    """Numbers from 0 up, one for each class; others are refused."""
    found = tuple(float(one) for one in given)
    if not (found and all(math.isfinite(one) and one >= 0 for one in found) and any(found)):
        raise ValueError(
            "class_weight has a finite number from 0 up for each class, not all of them 0, got "
            f"{found}."
        )
    return found


def by_class(targets: Tensor, weights: Sequence[float] | None, ignored: int | None) -> Tensor:
    """Class numbers with the weights of their classes, and none for the ignored number."""
    labels, given = split(targets)
    if labels.is_floating_point():
        return targets  # Refused where they are looked at.
    seen = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    labels = labels.masked_fill(~seen, 0)
    found = seen.to(torch.get_default_dtype())
    if weights is not None and labels.ndim > 1:
        raise ValueError(
            "class_weight is for one label of each example, got targets of shape "
            f"{tuple(labels.shape)}; leave it out, or use br.weighted(targets, weight)."
        )
    if weights is not None:
        _refuse_other_classes(labels, len(weights))
        table = torch.tensor(weights, dtype=found.dtype, device=labels.device)
        found = found * table[labels.long()]
    return WeightedTensor(labels, times(found, given))


def _refuse_other_classes(labels: Tensor, num: int) -> None:
    # Looking would make a GPU wait; torch itself refuses them there.
    if labels.device.type != "cpu" or not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num:
        raise ValueError(
            f"The targets hold class {low if low < 0 else high}, but class_weight has {num} "
            f"numbers: classes 0 to {num - 1}. Targets to leave out have ignore_index."
        )
