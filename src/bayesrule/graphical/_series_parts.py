"""Parts that a series may be made of: a level, a trend, a season, each with its own states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesrule.graphical._filtering import Array, Chain

_WIDE = 1e2
"""So many standard deviations of the series wide is the belief about the first state."""


@dataclass(frozen=True)
class Part(ABC):
    """One part of a series: `transition` (d, d) of its states; their sum `seen` (d,) is observed.

    `first` (d,) is the variance with which each state moves to begin with, in units of that of the
    series' steps.
    """

    @property
    @abstractmethod
    def transition(self) -> Array: ...

    @property
    @abstractmethod
    def seen(self) -> Array: ...

    @property
    @abstractmethod
    def first(self) -> Array: ...

    @property
    def level(self) -> Array:
        """1 for the state that starts at the mean of the series."""
        return np.zeros(len(self.seen))

    @property
    def shared(self) -> bool:
        """Whether all states move with one variance."""
        return False


@dataclass(frozen=True)
class Level(Part):
    """A random walk: `l_t = l_{t−1} + N(0, q)`."""

    @property
    def transition(self) -> Array:
        return np.eye(1)

    @property
    def seen(self) -> Array:
        return np.ones(1)

    @property
    def first(self) -> Array:
        return np.array([0.1])

    @property
    def level(self) -> Array:
        return np.ones(1)


@dataclass(frozen=True)
class Trend(Part):
    """A level that moves along a slope, which moves too: `l_t = l_{t−1} + b_{t−1} + N(0, q)`."""

    @property
    def transition(self) -> Array:
        return np.array([[1.0, 1.0], [0.0, 1.0]])

    @property
    def seen(self) -> Array:
        return np.array([1.0, 0.0])

    @property
    def first(self) -> Array:
        return np.array([0.1, 1e-4])

    @property
    def level(self) -> Array:
        return np.array([1.0, 0.0])


@dataclass(frozen=True)
class Season(Part):
    """Waves that come back after `period` steps: the first `harmonics` ones, slowly changing.

    Each is a pair of states that turns by `2π k / period` a step. Harvey (1989), sec. 2.3.4.
    """

    period: float
    harmonics: int = 1

    def __post_init__(self) -> None:
        if not self.period > 1.0 or not 1 <= self.harmonics <= self.period / 2:
            raise ValueError(
                "Season: the period is more than 1 step, and harmonics are 1 to half of it; got "
                f"{self.period} and {self.harmonics}."
            )

    @property
    def transition(self) -> Array:
        angles = [2.0 * math.pi * k / self.period for k in range(1, self.harmonics + 1)]
        turns = [[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]] for a in angles]
        return block_diagonal([np.array(turn) for turn in turns])

    @property
    def seen(self) -> Array:
        return np.tile([1.0, 0.0], self.harmonics)

    @property
    def first(self) -> Array:
        return np.full(2 * self.harmonics, 1e-3)

    @property
    def shared(self) -> bool:
        return True


def block_diagonal(blocks: Sequence[Array]) -> Array:
    """Matrices along the diagonal of one."""
    size = sum(len(block) for block in blocks)
    whole, at = np.zeros((size, size)), 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return whole


def chain_of(parts: Sequence[Part], y: Array) -> Chain:
    """The parts side by side, once for each column of y (T, P), at first guesses of variances."""
    columns, scale = y.shape[1], variance_of(y)
    steps = variance_of(np.diff(y, axis=0))
    one = block_diagonal([part.transition for part in parts])
    seen = np.concatenate([part.seen for part in parts])[None]
    first = np.concatenate([part.first for part in parts])
    level = np.concatenate([part.level for part in parts])
    eye = np.eye(columns)
    return Chain(
        transition=np.kron(eye, one).astype(np.float64, copy=False),
        process=np.diag(np.kron(steps, first)),
        observation=np.kron(eye, seen),
        noise=np.diag(0.3 * steps),
        offset=np.zeros(columns),
        first_mean=np.kron(np.nanmean(y, axis=0), level),
        first_covariance=np.diag(np.kron(_WIDE**2 * scale, np.ones(len(one)))),
    )


def groups_of(parts: Sequence[Part], columns: int) -> NDArray[np.intp]:
    """Which variance each state moves with, numbered from 0."""
    found: list[int] = []
    for _ in range(columns):
        for part in parts:
            size, begin = len(part.seen), max(found, default=-1) + 1
            found += [begin] * size if part.shared else list(range(begin, begin + size))
    return np.array(found, dtype=np.intp)


def variance_of(y: Array) -> Array:
    """Of each column, 1 where it never changes or nothing is known."""
    known = [column[~np.isnan(column)] for column in y.T]
    found = np.array([column.var() if len(column) else 0.0 for column in known])
    return np.where(found > 0.0, found, 1.0)
