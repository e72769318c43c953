"""Generated tables, one family for each way in which real tables are hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]


TEST_ROWS = 1_000


@dataclass(frozen=True)
class Sample:
    """Rows x (n, d) and targets y (n,): numbers, or class numbers where `classes` is set.

    The first `train` rows are for learning. The others, of the same function, are for testing.
    """

    x: Array
    y: Array
    train: int
    classes: bool = False


def _surface(rng: Generator, x: Array) -> Array:
    """A smooth random function of the rows: a net of eight tanh units."""
    directions = rng.normal(size=(x.shape[1], 8)) / np.sqrt(x.shape[1])
    return np.tanh(x @ directions + rng.normal(size=8)) @ rng.normal(size=8)


def _with_noise(rng: Generator, values: Array, share: float = 0.3) -> Array:
    """The values with noise of a share of their standard deviation."""
    return values + share * values.std() * rng.normal(size=len(values))


def heavy_tails(rng: Generator, rows: int = 2000) -> Sample:
    """Inputs from a t distribution, the largest some 70 standard deviations from the mean."""
    total = rows + TEST_ROWS
    x = rng.standard_t(1.8, size=(total, 12))
    x[:, 6:] = np.exp(rng.normal(scale=2.0, size=(total, 6)))
    y = _surface(rng, np.sign(x) * np.log1p(np.abs(x)))
    return Sample(x, _with_noise(rng, y), rows)


def few_rows(rng: Generator, rows: int = 50) -> Sample:
    """Fifty rows of five columns."""
    x = rng.normal(size=(rows + TEST_ROWS, 5))
    return Sample(x, _with_noise(rng, _surface(rng, x)), rows)


def many_columns(rng: Generator, rows: int = 300) -> Sample:
    """A hundred columns, five of which matter."""
    x = rng.normal(size=(rows + TEST_ROWS, 100))
    return Sample(x, _with_noise(rng, _surface(rng, x[:, :5])), rows)


def collinear(rng: Generator, rows: int = 500) -> Sample:
    """Twenty columns that are noisy sums of three."""
    factors = rng.normal(size=(rows + TEST_ROWS, 3))
    x = factors @ rng.normal(size=(3, 20)) + 1e-3 * rng.normal(size=(len(factors), 20))
    return Sample(x, _with_noise(rng, _surface(rng, factors)), rows)


def heteroscedastic(rng: Generator, rows: int = 1000) -> Sample:
    """Noise that grows with the first column."""
    x = rng.normal(size=(rows + TEST_ROWS, 6))
    y = _surface(rng, x)
    return Sample(x, y + np.exp(0.8 * x[:, 0] - 1.0) * rng.normal(size=len(x)), rows)


def periodic(rng: Generator, rows: int = 800) -> Sample:
    """A wave with several periods within the range of the data."""
    x = rng.uniform(-1.0, 1.0, size=(rows + TEST_ROWS, 3))
    y = np.sin(9.0 * x[:, 0] + rng.uniform(0.0, 6.0)) + 0.5 * x[:, 1]
    return Sample(x, _with_noise(rng, y, 0.2), rows)


def rare_class(rng: Generator, rows: int = 2000) -> Sample:
    """Two classes, one to fifty."""
    x = rng.normal(size=(rows + TEST_ROWS, 8))
    score = _surface(rng, x) + 0.3 * rng.normal(size=len(x))
    return Sample(x, (score > np.quantile(score, 0.98)).astype(np.float64), rows, classes=True)


FAMILIES: dict[str, Callable[[Generator], Sample]] = {
    one.__name__: one
    for one in (
        heavy_tails,
        few_rows,
        many_columns,
        collinear,
        heteroscedastic,
        periodic,
        rare_class,
    )
}
