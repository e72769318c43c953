"""Values of options, checked while the call is read: `type=` of argparse."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Whole numbers from `least` on.

    >>> whole(1)("20")
    20
    """
    upper = "" if most is None else f" and at most {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise ArgumentTypeError(
                f"takes a whole number of at least {least}{upper}, got '{text}'"
            )
        return value

    return read


def real(what: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Finite numbers that fit a condition; `what` says which.

    >>> real("a positive number", lambda v: v > 0)("0.5")
    0.5
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and fits(value)):
            raise ArgumentTypeError(f"takes {what}, got '{text}'")
        return value

    return read


positive = real("a number above 0", lambda v: v > 0.0)
not_negative = real("a number of 0 or more", lambda v: v >= 0.0)
between = real("a number strictly between 0 and 1", lambda v: 0.0 < v < 1.0)
fraction = real("a number from 0 up to but not 1", lambda v: 0.0 <= v < 1.0)
seed = whole(0, 2**32 - 1)


def names(text: str) -> list[str]:
    """Names between commas.

    >>> names("a, b,")
    ['a', 'b']
    """
    listed = [name.strip() for name in text.split(",") if name.strip()]
    if not listed:
        raise ArgumentTypeError(f"takes names with commas between them, got '{text}'")
    return listed


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Numbers between commas, without repetitions.

    >>> several(positive)("1, 0.1,1")
    [1.0, 0.1]
    """

    def each(text: str) -> list[T]:
        return list(dict.fromkeys(read(part) for part in names(text)))

    return each


def units(text: str) -> tuple[int, ...]:
    """Units of hidden layers; none make a linear model.

    >>> units("64,64"), units("none")
    ((64, 64), ())
    """
    if text.strip().lower() == "none":
        return ()
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ArgumentTypeError(
            "takes whole numbers of at least 1 such as 50 or 64,64, or none for a linear model, "
            f"got '{text}'"
        )
    return sizes
