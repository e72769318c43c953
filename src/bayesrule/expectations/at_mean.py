"""The delta method: `E_q[f(θ)] ≈ f(E_q θ)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation
from bayesrule.posteriors import Point, Posterior


@dataclass(frozen=True)
class AtMean(Expectation):
    """One point, the mean."""

    random = False
    num = 1
    stack_obstacle = None

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        yield posterior.at_mean()
