"""Weights of examples by their class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.likelihoods._classes import class_out_of_range
from bayesrule.likelihoods._weighted import WeightedTensor, split, times


def class_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """The weights as a tuple; refuses weights that are not finite, negative or all zero."""
    checked = tuple(float(weight) for weight in weights)
    if not (checked and all(math.isfinite(w) and w >= 0 for w in checked) and any(checked)):
        raise ValueError(
            "class_weight has a finite number from 0 up for each class, not all of them 0, got "
            f"{checked}."
        )
    return checked


def by_class(targets: Tensor, weights: Sequence[float] | None, ignored: int | None) -> Tensor:
    """Class numbers weighted by their class; the ignored number gets weight 0."""
    labels, example_weight = split(targets)
    if labels.is_floating_point():
        return targets  # The likelihood refuses them later.
    seen = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    labels = labels.masked_fill(~seen, 0)
    weight = seen.to(torch.get_default_dtype())
    if weights is not None and labels.ndim > 1:
        raise ValueError(
            "class_weight is for one label of each example, got targets of shape "
            f"{tuple(labels.shape)}; leave it out, or use br.weighted(targets, weight)."
        )
    if weights is not None:
        wrong = class_out_of_range(labels, len(weights))
        if wrong is not None:
            raise ValueError(
                f"The targets hold class {wrong}, but class_weight has {len(weights)} numbers: "
                f"classes 0 to {len(weights) - 1}. Targets to leave out have ignore_index."
            )
        table = torch.tensor(weights, dtype=weight.dtype, device=labels.device)
        weight = weight * table[labels.long()]
    return WeightedTensor(labels, times(weight, example_weight))
