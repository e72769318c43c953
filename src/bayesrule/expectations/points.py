"""The points that most methods use: the mean, draws of the weights, the whole posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation, Look
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.tensors.abilities import derived
from bayesrule.types import Params


class OnePoint(Expectation):
    """The base of expectations at a single point, which see nothing of the spread about it."""

    random = False
    num = 1
    sees_spread = False

    def obstacle(self, family: Family) -> str | None:
        if not family.needs_draws:
            return None
        return f"{type(family).__name__}() is learned at draws of the whole posterior; use Draws(1)"


@dataclass(frozen=True)
class AtMean(OnePoint):
    """One point, the mean: the delta method, `E_q[f(θ)] ≈ f(E_q θ)`."""

    stack_obstacle = None

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        yield posterior.at_mean()


@dataclass(frozen=True)
class AtMode(OnePoint):
    """One point, the most probable weights; for a Gaussian, the mean.

    For binary weights it is the likelier sign of each.
    """

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        yield posterior.at_mode()


@dataclass(frozen=True)
class Draws(Expectation):
    """`num` draws of the weights, each shared by the batch.

    Antithetic draws come in pairs `m ± δ`, which cancels all odd moments of the error.
    """

    num: int = 1
    antithetic: bool = False

    random = True
    stack_obstacle = None

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"Draws takes at least one draw, got {self.num}.")
        if self.antithetic and self.num % 2:
            raise ValueError(f"Antithetic draws come in pairs, got an odd number: {self.num}.")

    @derived
    def plain_draws(self) -> bool:
        """Whether draws are independent, not in antithetic pairs."""
        return not self.antithetic

    def obstacle(self, family: Family) -> str | None:
        if not family.spreads:
            return f"{type(family).__name__}() has no variance to draw from; use AtMean()"
        if not self.antithetic or family.symmetric:
            return None
        return f"draws of {type(family).__name__}() have no mirror image; use Draws({self.num})"

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        for _ in range(self.num // 2 if self.antithetic else self.num):
            if not self.antithetic:
                yield posterior.draw(generator) if tracked else posterior.untracked(generator)
                continue
            point = posterior.draw(generator)
            # Mirror the point first: whoever gets it may overwrite it.
            mirrored = point.mirrored()
            yield point
            yield mirrored


@dataclass(frozen=True)
class Masks(Expectation):
    """`num` copies of the mean with units dropped at random: dropout, and MC dropout.

    The batch shares each mask. The spread of the weights that are kept is ignored (delta method);
    `Draws(num)` includes it.
    """

    num: int = 1

    random = True

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"Masks takes at least one mask, got {self.num}.")

    def obstacle(self, family: Family) -> str | None:
        if family.drops:
            return None
        return f"{type(family).__name__}() drops no units; use SpikeSlabFamily(keep), or Draws(1)"

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        for _ in range(self.num):
            yield posterior.masked(generator)


@dataclass(frozen=True)
class MomentPoint(Point):
    """The whole posterior: means are the coordinates, `variance` is that of uncertain weights."""

    variance: Params
    activations: Activations


@dataclass(frozen=True)
class Moments(Expectation):
    """No points are drawn: weights, hidden units and outputs stay Gaussian (TAGI).

    `activations` says how Gaussians pass through scalar functions: `moments.MomentMatched()` or
    `moments.LocallyLinear()`. Without them, predictions use the activations of training.
    """

    activations: Activations | None = None
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
        yield MomentPoint(posterior.mean, posterior.uncertain_variance(), self.carried)

    @property
    def carried(self) -> Activations:
        """The activations, by default `MomentMatched()`."""
        return self.activations or MomentMatched()

    def as_learned(self, own: Expectation) -> Expectation:
        return own if self.activations is None and own.look is Look.MOMENTS else self
