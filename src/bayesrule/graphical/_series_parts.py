"""Parts of a series: a level, a trend, a season, each with its own states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesrule.graphical._filtering import Array, Chain

_WIDE = 1e2
"""The standard deviation of the first state's prior, in standard deviations of the series."""


@dataclass(frozen=True)
class Part(ABC):
    """One part of a series: its d states move by `transition` (d, d), and `seen`ᵀ z is observed.

    `first` (d,) is the first guess of the variance with which each state moves, in units of the
    variance of the series' steps.
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
        """(d,) with 1 for the state that starts at the mean of the series."""
        return np.zeros(len(self.seen))

    @property
    def shared(self) -> bool:
        """Whether all states share one variance."""
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
    """A level with a slope, both random walks: `l_t = l_{t−1} + b_{t−1} + N(0, q)`."""

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
    """A slowly changing wave of `period` steps, the sum of its first `harmonics`.

    Harmonic k is a pair of states that turns by `2π k / period` a step. Harvey (1989), sec. 2.3.4.
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
    """One matrix with the given ones along its diagonal."""
    size = sum(len(block) for block in blocks)
    whole, at = np.zeros((size, size)), 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return whole


def chain_of(parts: Sequence[Part], y: Array) -> Chain:
    """A chain of the parts for each column of y (T, P), at first guesses of the variances."""
    columns, scale = y.shape[1], variance_of(y)
    steps = variance_of(np.diff(y, axis=0))
    transition = block_diagonal([part.transition for part in parts])
    seen = np.concatenate([part.seen for part in parts])[None]
    first = np.concatenate([part.first for part in parts])
    level = np.concatenate([part.level for part in parts])
    eye = np.eye(columns)
    return Chain(
        transition=np.kron(eye, transition).astype(np.float64, copy=False),
        process=np.diag(np.kron(steps, first)),
        observation=np.kron(eye, seen),
        noise=np.diag(0.3 * steps),
        offset=np.zeros(columns),
        first_mean=np.kron(np.nanmean(y, axis=0), level),
        first_covariance=np.diag(np.kron(_WIDE**2 * scale, np.ones(len(transition)))),
    )


def groups_of(parts: Sequence[Part], columns: int) -> NDArray[np.intp]:
    """The number, from 0, of the variance that each state moves with."""
    groups: list[int] = []
    for _ in range(columns):
        for part in parts:
            size, begin = len(part.seen), max(groups, default=-1) + 1
            groups += [begin] * size if part.shared else list(range(begin, begin + size))
    return np.array(groups, dtype=np.intp)


def variance_of(y: Array) -> Array:
    """The variance of each column, 1 if it is constant or all missing."""
    observed = [column[~np.isnan(column)] for column in y.T]
    variances = np.array([column.var() if len(column) else 0.0 for column in observed])
    return np.where(variances > 0.0, variances, 1.0)
