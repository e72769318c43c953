"""Expectations in closed form: means and variances carried through the network itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Generator

from bayesrule.expectations._base import Expectation, Point
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import Posterior


@dataclass(frozen=True)
class Moments(Expectation):
    """No points are drawn: weights, hidden units and outputs stay Gaussian (TAGI).

    `activations` says how Gaussians pass scalar functions: `moments.MomentMatched()` or
    `moments.LocallyLinear()`.
    """

    activations: Activations = field(default_factory=MomentMatched)
    random = False
    num = 1

    def points(
        self, posterior: Posterior, generator: Generator, *, offsets: bool = True
    ) -> Iterator[Point]:
        yield Point(posterior.mean, None, self.activations)
