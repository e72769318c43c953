"""The points at which an expectation over q is estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum

from torch import Generator

from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.types import Part


class Look(Enum):
    """What an expectation shows to an estimate of derivatives."""

    WEIGHTS = "weights"
    """The loss at given weights: the mean, or draws that the whole batch shares."""
    LAYERS = "draws within the layers"
    """The loss of examples that each have their own draw, made within the layers."""
    MOMENTS = "means and variances of all units"
    """Gaussians that are propagated through the network."""


class Expectation(Part, ABC):
    """`E_q[·]` as an average over a few points."""

    random: bool
    look: Look = Look.WEIGHTS
    sees_spread: bool = True
    """Whether predictions made by it reflect the spread of the posterior."""
    plain_draws: bool = False
    """Whether its points are plain independent draws of the weights."""

    @property
    @abstractmethod
    def num(self) -> int:
        """The number of points."""

    @abstractmethod
    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        """The points, one after another.

        Only `tracked` points keep how they were drawn, which costs a little.
        """

    def as_learned(self, own: Expectation) -> Expectation:
        """What it means to a learner that uses `own`: itself, if it leaves nothing open."""
        return self

    def obstacle(self, family: Family) -> str | None:
        """Why this cannot be used with a family's posteriors, in words; None if it can."""
        return None

    @property
    def stack_obstacle(self) -> str | None:
        """Why the points of many nets cannot be taken together, in words; None if they can."""
        return f"the expectation {type(self).__name__}"
