"""Monte Carlo over the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.expectations._base import Expectation, Point
from bayesrule.posteriors import Factorised, Posterior
from bayesrule.tensors import vectors
from bayesrule.types import Params


@dataclass(frozen=True)
class Draws(Expectation):
    """`num` draws of the weights, each shared by the batch.

    Antithetic draws come in pairs `m ± δ`, which cancels all odd moments of the error.
    """

    num: int = 1
    antithetic: bool = False

    random = True

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"Draws takes at least one draw, got {self.num}.")
        if self.antithetic and self.num % 2:
            raise ValueError(f"Antithetic draws come in pairs, got an odd number: {self.num}.")

    def points(
        self, posterior: Posterior, generator: Generator, *, offsets: bool = True
    ) -> Iterator[Point]:
        if not (offsets or self.antithetic):
            for _ in range(self.num):
                yield Point(posterior.sample(generator), None)
            return
        for _ in range(self.num // 2 if self.antithetic else self.num):
            drawn = _drawn(posterior, generator)
            mirrored = vectors.scale(drawn, -1.0) if self.antithetic else None
            yield _point(posterior, drawn)
            if mirrored is not None:
                yield _point(posterior, mirrored)


def _drawn(posterior: Posterior, generator: Generator) -> Params:
    """An offset from the mean; of independent weights in standard deviations."""
    if isinstance(posterior, Factorised):
        return posterior.noise(generator)
    return posterior.offset(generator)


def _point(posterior: Posterior, drawn: Params) -> Point:
    if isinstance(posterior, Factorised):
        return Point(posterior.moved(drawn), None, noise=drawn)
    return Point(vectors.add(posterior.mean, drawn), drawn)
