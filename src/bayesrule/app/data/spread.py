"""Mean, spread and median of numbers of any size, the largest and the smallest too."""

from __future__ import annotations

import numpy as np

from bayesrule.app.data.table import Floats


def moments_of(values: Floats) -> tuple[float, float]:
    """Return the mean and the standard deviation.

    Squares of 1e200 and 1e-200 leave the range of numbers. So the values are brought near 1 by a
    power of two, which changes no digit, and the results brought back.

    >>> moments_of(np.array([1e-200, 3e-200]))
    (2e-200, 1e-200)
    """
    near_one, exponent = _near_one(values)
    mean, std = (np.ldexp(moment, exponent) for moment in (near_one.mean(), near_one.std()))
    return float(mean), float(std)


def median_of(values: Floats) -> float:
    """Return the median, also where the sum of the middle two would be infinite."""
    near_one, exponent = _near_one(values)
    return float(np.ldexp(np.median(near_one), exponent))


def _near_one(values: Floats) -> tuple[Floats, int]:
    exponent = int(np.frexp(np.abs(values).max())[1])
    return np.ldexp(values, -exponent), exponent
