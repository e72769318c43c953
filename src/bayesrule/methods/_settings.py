"""Options that every method has."""

from __future__ import annotations

from functools import partial
from typing import Any, Required, TypedDict

from torch.optim import Adam

from bayesrule.rules import Elbo
from bayesrule.schedules import Schedule

Rate = float | Schedule


class Settings(TypedDict, total=False):
    """Options that every method has; `Learner` says what they mean."""

    num_data: Required[int]
    prior_precision: float
    temperature: float
    shared_draws: bool


def adam_steps(learning_rate: Rate, momentum: float = 0.9, rate: float = 1e-3) -> Elbo:
    """Adam's steps of the mean; the belief's covariance does not move."""
    return Elbo(learning_rate, optimiser=partial(Adam, betas=(momentum, 1.0 - rate)))


def without_prior(settings: Any) -> Any:
    """Plain optimisers have no prior unless they are given one."""
    return {"prior_precision": 0.0, **settings}
