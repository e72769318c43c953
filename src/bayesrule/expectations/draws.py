"""Monte Carlo over the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation
from bayesrule.posteriors import Family, Point, Posterior


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

    @property
    def plain_draws(self) -> bool:  # type: ignore[override]
        """Whether draws do not come in pairs."""
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
            point = posterior.draw(generator) if tracked or self.antithetic else None
            if point is None:
                yield posterior.untracked(generator)
                continue
            # Whoever gets a point may use it up.
            mirrored = point.mirrored() if self.antithetic else None
            yield point
            if mirrored is not None:
                yield mirrored
