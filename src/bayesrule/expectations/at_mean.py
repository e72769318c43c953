"""The delta method: `E_q[f(θ)] ≈ f(E_q θ)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation, Point
from bayesrule.posteriors import Posterior


@dataclass(frozen=True)
class AtMean(Expectation):
    """One point, the mean."""

    random = False
    num = 1

    def points(
        self, posterior: Posterior, generator: Generator, *, offsets: bool = True
    ) -> Iterator[Point]:
        yield Point(posterior.mean, None)
