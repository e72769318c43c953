"""Targets that are not known for sure, or count more than others, beside plain ones."""

from __future__ import annotations

from torch import Tensor

from bayesrule.likelihoods._weighted import WeightedTensor, rooted, split
from bayesrule.moments import GaussianTensor
from bayesrule.types import Params

# Under these names the variances of a batch's targets, and the weights of its examples, travel
# beside a likelihood's state, for as long as the batch is looked at.
TARGET_VARIANCE = "target_variance"
EXAMPLE_WEIGHT = "example_weight"


def observed(targets: Tensor, state: Params) -> tuple[Tensor, Params]:
    """Plain targets, and the state with their variances and weights where they have any."""
    if isinstance(targets, WeightedTensor):
        return observed(targets.plain, {**state, EXAMPLE_WEIGHT: targets.weight})
    if not isinstance(targets, GaussianTensor):
        return targets, state
    return targets.centre, {**state, TARGET_VARIANCE: targets.variance}


def counted(targets: Tensor, state: Params) -> tuple[Tensor, Params]:
    """Targets without their weights, and the state with them where there are any."""
    values, weight = split(targets)
    return values, state if weight is None else {**state, EXAMPLE_WEIGHT: weight}


def as_observed(values: Tensor, own: Params) -> Tensor:
    """Targets with the variances and weights that `observed` found."""
    variance, weight = own.get(TARGET_VARIANCE), own.get(EXAMPLE_WEIGHT)
    made = values if variance is None else GaussianTensor(values, variance)
    return made if weight is None else WeightedTensor(made, weight)


def as_uncertain_as(like: Tensor, values: Tensor) -> Tensor:
    """Other values for targets, with the variances that these have, and the roots of weights.

    Gradients at targets that were drawn are squared, and then count as often as their examples.
    """
    known, _ = split(like)
    if isinstance(known, GaussianTensor):
        values = GaussianTensor(values, known.variance.reshape(values.shape))
    return rooted(like, values)
