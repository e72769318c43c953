"""Expectations in closed form: means and variances carried through the network itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Generator

from bayesrule.expectations._base import Expectation, Look
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.types import Params


@dataclass(frozen=True)
class MomentPoint(Point):
    """The whole belief: its means are the coordinates, `variance` is that of uncertain weights."""

    variance: Params
    activations: Activations


@dataclass(frozen=True)
class Moments(Expectation):
    """No points are drawn: weights, hidden units and outputs stay Gaussian (TAGI).

    `activations` says how Gaussians pass scalar functions: `moments.MomentMatched()` or
    `moments.LocallyLinear()`.
    """

    activations: Activations = field(default_factory=MomentMatched)
    random = False
    num = 1
    look = Look.MOMENTS
    asks = ("marginal",)

    def obstacle(self, family: Family) -> str | None:
        if family.independent:
            return None
        return (
            "moment propagation is for independent Gaussian weights, such as MeanFieldFamily() or "
            f"GaussianFamily(Diagonal()); it would lose what {family!r} knows of how they vary "
            "together. Use Linearised() or Draws(num)"
        )

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        yield MomentPoint(posterior.mean, posterior.uncertain_variance(), self.activations)
