"""The delta method: `E_q[f(θ)] ≈ f(E_q θ)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation
from bayesrule.posteriors import Family, Point, Posterior


@dataclass(frozen=True)
class AtMean(Expectation):
    """One point, the mean."""

    random = False
    num = 1
    sees_spread = False
    stack_obstacle = None

    def obstacle(self, family: Family) -> str | None:
        if not family.needs_draws:
            return None
        return f"{type(family).__name__}() is learned at draws of the whole belief; use Draws(1)"

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        yield posterior.at_mean()
