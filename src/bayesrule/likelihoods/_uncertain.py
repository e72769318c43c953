"""Targets that are not known for sure: each is a Gaussian with a mean and a variance of its own."""

from __future__ import annotations

from torch import Tensor

from bayesrule.moments import GaussianTensor
from bayesrule.types import Params

# Under this name the variances of a batch's targets travel beside a likelihood's state, for as long
# as the batch is looked at.
TARGET_VARIANCE = "target_variance"


def observed(targets: Tensor, state: Params) -> tuple[Tensor, Params]:
    """Plain targets, and the state with their variances where they have any."""
    if not isinstance(targets, GaussianTensor):
        return targets, state
    return targets.centre, {**state, TARGET_VARIANCE: targets.variance}


def as_uncertain_as(like: Tensor, values: Tensor) -> Tensor:
    """Other values for targets, with the variances that these have."""
    if not isinstance(like, GaussianTensor):
        return values
    return GaussianTensor(values, like.variance.reshape(values.shape))
