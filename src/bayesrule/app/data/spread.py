"""Mean, spread and median of numbers of any size, and whether some lie far from the others."""

from __future__ import annotations

import numpy as np

from bayesrule.app.data.table import Floats

# The width of the middle half of a standard normal distribution.
_MIDDLE_HALF = 1.349
_FAR = 10.0


def moments_of(values: Floats) -> tuple[float, float]:
    """Return the mean and the standard deviation.

    Squares of 1e200 and 1e-200 leave the range of floats. So the values are scaled to near 1 by a
    power of two, which changes no digit, and the results are scaled back.

    >>> moments_of(np.array([1e-200, 3e-200]))
    (2e-200, 1e-200)
    """
    near_one, exponent = _near_one(values)
    mean, std = (np.ldexp(moment, exponent) for moment in (near_one.mean(), near_one.std()))
    return float(mean), float(std)


def median_of(values: Floats) -> float:
    """Return the median, even if the sum of the middle two would overflow."""
    near_one, exponent = _near_one(values)
    return float(np.ldexp(np.median(near_one), exponent))


def heavy_spread(values: Floats) -> float:
    """The spread of the middle half, as a standard deviation, if some values lie far out; else 0.

    Far means more than ten such deviations from the median, which normally distributed numbers
    never are. If the middle half is all equal, the mean distance from the median takes its place.

    >>> heavy_spread(np.array([0.0, 1.0, 2.0, 3.0, 1000.0]))
    1.4825796886582654
    >>> heavy_spread(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    0.0
    """
    near_one, exponent = _near_one(values)
    low, middle, high = np.quantile(near_one, (0.25, 0.5, 0.75))
    distances = np.abs(near_one - middle)
    spread = float(high - low) / _MIDDLE_HALF or float(distances.mean())
    return float(np.ldexp(spread, exponent)) if distances.max() > _FAR * spread else 0.0


def _near_one(values: Floats) -> tuple[Floats, int]:
    exponent = int(np.frexp(np.abs(values).max())[1])
    return np.ldexp(values, -exponent), exponent
