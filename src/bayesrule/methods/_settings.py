"""Options that every method has."""

from __future__ import annotations

from typing import Any, Required, TypedDict

from bayesrule.rules import Average, Natural
from bayesrule.schedules import Schedule

Rate = float | Schedule


class Settings(TypedDict, total=False):
    """Options that every method has; `Learner` says what they mean."""

    num_data: Required[int]
    prior_precision: float
    temperature: float
    shared_draws: bool


def adam_steps(learning_rate: Rate, momentum: float, rate: Rate) -> Natural:
    """Adam's steps of the mean; the belief's covariance does not move."""
    average = Average(momentum)
    return Natural(
        learning_rate, rate, average, square_root=True, debias=True, fixed_precision=True
    )


def without_prior(settings: Any) -> Any:
    """Plain optimisers have no prior unless they are given one."""
    return {"prior_precision": 0.0, **settings}
