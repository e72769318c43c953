"""Where the loss is looked at: the points at which an expectation over q is estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum

from torch import Generator

from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.types import Part


class Look(Enum):
    """What an expectation shows an estimate of derivatives."""

    WEIGHTS = "weights"
    """The loss at weights: at the mean, or at draws that a whole batch shares."""
    LAYERS = "draws within the layers"
    """The loss of examples that have draws of their own, made within the layers."""
    MOMENTS = "means and variances of all units"
    """Gaussians that are carried through the network."""


class Expectation(Part, ABC):
    """`E_q[·]` as an average over a few points."""

    random: bool
    look: Look = Look.WEIGHTS
    sees_spread: bool = True
    """Whether predictions by it tell of the spread of the belief."""
    plain_draws: bool = False
    """Whether its points are independent draws of the weights and nothing else."""

    @property
    @abstractmethod
    def num(self) -> int:
        """How many points there are."""

    @abstractmethod
    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        """The points, one after another.

        Only those that are `tracked` know how they were drawn, which costs a little.
        """

    def as_learned(self, own: Expectation) -> Expectation:
        """What stands for it where a learner looks by `own`: itself, if it leaves nothing open."""
        return self

    def obstacle(self, family: Family) -> str | None:
        """Why beliefs of a family cannot be looked at in this way, in words; None if they can."""
        return None

    @property
    def stack_obstacle(self) -> str | None:
        """Why many nets cannot be looked at together."""
        return f"the expectation {type(self).__name__}"
