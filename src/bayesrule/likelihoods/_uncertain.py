"""Targets that are uncertain or weighted, converted to plain tensors and back."""

from __future__ import annotations

from torch import Tensor

from bayesrule.likelihoods._weighted import WeightedTensor, rooted, split
from bayesrule.moments import GaussianTensor
from bayesrule.types import Params

# While a batch is processed, its targets' variances and its examples' weights travel in the
# likelihood's state under these names.
TARGET_VARIANCE = "target_variance"
EXAMPLE_WEIGHT = "example_weight"


def observed(targets: Tensor, state: Params) -> tuple[Tensor, Params]:
    """Plain targets, and the state with their variances and weights, if they have any."""
    if isinstance(targets, WeightedTensor):
        return observed(targets.plain, {**state, EXAMPLE_WEIGHT: targets.weight})
    if not isinstance(targets, GaussianTensor):
        return targets, state
    return targets.centre, {**state, TARGET_VARIANCE: targets.variance}


def counted(targets: Tensor, state: Params) -> tuple[Tensor, Params]:
    """Targets without their weights, and the state with the weights, if there are any."""
    values, weight = split(targets)
    return values, state if weight is None else {**state, EXAMPLE_WEIGHT: weight}


def as_observed(values: Tensor, extras: Params) -> Tensor:
    """The inverse of `observed`: targets with the variances and weights in `extras`."""
    variance, weight = extras.get(TARGET_VARIANCE), extras.get(EXAMPLE_WEIGHT)
    targets = values if variance is None else GaussianTensor(values, variance)
    return targets if weight is None else WeightedTensor(targets, weight)


def as_uncertain_as(like: Tensor, values: Tensor) -> Tensor:
    """Drawn `values` with the variances of the targets `like` and the square roots of its weights.

    Gradients at drawn targets are squared, which turns the roots into weights again.
    """
    targets, _ = split(like)
    if isinstance(targets, GaussianTensor):
        values = GaussianTensor(values, targets.variance.reshape(values.shape))
    return rooted(like, values)
