"""Axes: limits for any values, round ticks and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .contents import Floats

_HUGE = 1e100  # differences of larger numbers overflow


def drawable(values: ArrayLike) -> Floats:
    """The values, with NaN for those that cannot be drawn (infinite or beyond 1e100)."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) < _HUGE, numbers, np.nan)


def finite(*values: ArrayLike) -> Floats:
    """All drawable numbers of the arguments in one vector."""
    joined = np.concatenate([np.empty(0), *(drawable(v).reshape(-1) for v in values)])
    return joined[np.isfinite(joined)]


def limits(*values: ArrayLike, tail: float = 0.0, pad: float = 0.04) -> tuple[float, float]:
    """Lowest and highest finite value with a margin; (0, 1) when there is none.

    With `tail`, that share of the values at each end is left out of the frame where keeping it
    would stretch the axis more than threefold: one diverged method must not flatten the others.

    >>> limits([1.0, 3.0], pad=0.0), limits([]), limits([2.0])
    ((1.0, 3.0), (0.0, 1.0), (1.0, 3.0))
    """
    numbers = finite(*values)
    if not len(numbers):
        return 0.0, 1.0
    low, high = float(numbers.min()), float(numbers.max())
    if tail:
        core_low = float(np.quantile(numbers, tail, method="higher"))
        core_high = float(np.quantile(numbers, 1 - tail, method="lower"))
        core = core_high - core_low
        if core > 0:
            low = core_low - 0.5 * core if core_low - low > core else low
            high = core_high + 0.5 * core if high - core_high > core else high
    span = high - low
    if not span > 1e-9 * max(abs(low), abs(high)):
        # Half of a smaller number may round to 0, so it is drawn like 0.
        half = 0.5 * abs(low) if abs(low) > 1e-300 else 1.0
        return low - half, high + half
    margin = max(pad * span, 0.0 if span > 1e-300 else 1.0)
    return low - margin, high + margin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high].

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / max(count, 1)
    if not (math.isfinite(rough) and rough > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside [low, high], with 2 and 5 times them when the range is short."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    every = max(1, (last - first) // 6)
    candidates = [f * 10.0**k for k in range(first, last + 1, every) for f in factors]
    inside = [t for t in candidates if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
    return inside or [low, high]


def tick_label(value: float, step: float) -> str:
    """A tick's text, with as many decimals as the step between ticks needs.

    >>> tick_label(0.5, 0.25), tick_label(-20.0, 10.0), tick_label(2e7, 1e7)
    ('0.50', '−20', '2e7')
    """
    if value == 0:
        return "0"
    if max(abs(value), step) >= 1e5 or step < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−")
    needed = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, needed) != round(step, needed + 2):  # a step of 2.5, 0.25, ...
        needed += 1
    return f"{value:.{needed}f}".replace("-", "−")


@dataclass(frozen=True)
class Axis:
    """A labelled range, linear or logarithmic.

    `at` are the values that have a tick, by default round ones, and `names` their texts.
    """

    label: str
    low: float
    high: float
    log: bool = False
    at: Sequence[float] | None = None
    names: Sequence[str] | None = None

    def place(self, values: ArrayLike) -> Floats:
        """Positions in [0, 1] along the axis; NaN for values that cannot be placed."""
        numbers = drawable(values)
        if self.log:
            numbers = np.log(np.where(numbers > 0, numbers, np.nan))
            low, high = math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return np.asarray((numbers - low) / (high - low), dtype=np.float64)

    def marks(self) -> list[tuple[float, str]]:
        """Tick values with their texts."""
        if self.at is not None:
            names = self.names or [f"{t:g}" for t in self.at]
            return list(zip(self.at, names, strict=True))
        if self.log:
            return [(t, tick_label(t, t)) for t in log_ticks(self.low, self.high)]
        values = ticks(self.low, self.high)
        step = values[1] - values[0] if len(values) > 1 else abs(values[0]) or 1.0
        return [(t, tick_label(t, step)) for t in values]
