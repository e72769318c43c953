"""Learning-rate schedules: plain callables from the step (0, 1, 2, ...) to a number.

Each is a frozen dataclass, so that it prints as the call that builds it, compares by value and can
be kept in a checkpoint. After its last step it holds its final value. The names are in lower case
because they read as functions: ``learning_rate=cosine(0.1, steps=1000)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import ClassVar

Schedule = Callable[[int], float]


def _plain(name: str, value: float, least: int | None = None) -> float:
    """A plain float, or an int of at least `least`, so that printing and comparing are exact."""
    if least is not None:
        if isinstance(value, Integral) and value >= least:
            return int(value)
        takes = f"a whole number of {least} or more"
    else:
        if isinstance(value, Real) and math.isfinite(value) and value >= 0:
            return float(value)
        takes = "a finite number of 0 or more"
    raise ValueError(f"A schedule takes {takes} as {name}, got {value!r}.")


class _Checked(ABC):
    """The base of all schedules: checks numbers and steps; the subclass gives ``_at``."""

    # The smallest value of each whole-number argument; all others are real numbers of 0 or more.
    _whole: ClassVar[Mapping[str, int]] = {"steps": 1, "warmup": 0}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(name, value, self._whole.get(name)))

    def __call__(self, step: int) -> float:
        if step < 0:
            raise ValueError(f"A schedule takes a step of 0 or more, got {step}.")
        return self._at(step)

    @abstractmethod
    def _at(self, step: int) -> float: ...


@dataclass(frozen=True)
class constant(_Checked):
    """The same value at every step.

    >>> constant(0.1)(1000)
    0.1
    """

    value: float

    def _at(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class cosine(_Checked):
    """Linear warm-up to ``value``, then half a cosine down to ``final`` at step ``steps``.

    With w = ``warmup`` and T = ``steps`` (the warm-up included)::

        t < w:   value (t + 1) / (w + 1)
        t >= w:  final + (value - final) (1 + cos(pi (t - w) / (T - w))) / 2

    The warm-up starts above zero, so that the first step is not wasted.

    >>> schedule = cosine(1.0, steps=11, warmup=1, final=0.2)
    >>> [round(schedule(t), 3) for t in (0, 1, 6, 11, 100)]
    [0.5, 1.0, 0.6, 0.2, 0.2]
    """

    value: float
    steps: int
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup >= self.steps:
            raise ValueError(
                f"cosine takes fewer warmup steps than steps (steps includes the warm-up), "
                f"got warmup={self.warmup} and steps={self.steps}."
            )

    def _at(self, step: int) -> float:
        if step < self.warmup:
            return self.value * (step + 1) / (self.warmup + 1)
        if step >= self.steps:
            return self.final
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return self.final + (self.value - self.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class exponential(_Checked):
    """Decay by the same factor at every step: value · rate^t, with 0 < rate <= 1.

    >>> exponential(0.8, rate=0.5)(2)
    0.2
    """

    value: float
    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate <= 1:
            raise ValueError(
                f"exponential multiplies by rate at every step and takes 0 < rate <= 1, "
                f"got {self.rate}; for growth use linear(start, end, steps)."
            )

    def _at(self, step: int) -> float:
        return float(self.value * self.rate**step)


@dataclass(frozen=True)
class piecewise(_Checked):
    """A value that is multiplied by a factor at each of the given steps.

    The factors multiply up: {30: 0.1, 60: 0.1} gives 1, 0.1 and 0.01 times the value. They are kept
    as sorted pairs, which are also accepted.

    >>> schedule = piecewise(8.0, {10: 0.5, 20: 0.5})
    >>> [schedule(t) for t in (0, 9, 10, 20, 99)]
    [8.0, 8.0, 4.0, 2.0, 2.0]
    >>> schedule
    piecewise(value=8.0, factors=((10, 0.5), (20, 0.5)))
    """

    value: float
    factors: Mapping[int, float] | tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        pairs = dict(self.factors).items()
        checked = [(_plain("a step of factors", s, 0), _plain("a factor", f)) for s, f in pairs]
        object.__setattr__(self, "value", _plain("value", self.value))
        object.__setattr__(self, "factors", tuple(sorted(checked)))

    def _at(self, step: int) -> float:
        reached = (factor for start, factor in dict(self.factors).items() if start <= step)
        return self.value * math.prod(reached)


@dataclass(frozen=True)
class linear(_Checked):
    """A straight line: start + (end - start) t / steps, then ``end``.

    >>> [linear(1.0, 0.0, steps=4)(t) for t in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def _at(self, step: int) -> float:
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * step / self.steps


@dataclass(frozen=True)
class falling(_Checked):
    """A rate that `fit` lets fall, because it knows how long training is.

    In a training loop of your own it stays at ``value``. With ``steps`` it stays there until step
    ``start``, then follows half a cosine down to zero, which it reaches at step ``start + steps``.

    >>> falling(0.1)(10_000)
    0.1
    >>> [round(falling(1.0, start=10, steps=4)(t), 3) for t in (0, 10, 11, 12, 14, 20)]
    [1.0, 1.0, 0.854, 0.5, 0.0, 0.0]
    """

    value: float
    start: int = 0
    steps: int = 0
    _whole: ClassVar[Mapping[str, int]] = {"start": 0, "steps": 0}

    def _at(self, step: int) -> float:
        if self.steps == 0 or step <= self.start:
            return self.value
        if step >= self.start + self.steps:
            return 0.0
        return self.value * (1 + math.cos(math.pi * (step - self.start) / self.steps)) / 2


@dataclass(frozen=True)
class averaging(_Checked):
    """The weight of the newest estimate in a running average, such as `rate` of the curvature.

    It is ``first`` at the beginning, then falls as ``pace / k`` with the number k of estimates, and
    stays at ``last``: ``max(last, min(first, pace / (k + pace / first)))``. Weights 1/k give the
    mean of all estimates; a larger pace forgets the early ones.

    >>> [round(averaging(0.5, 0.01)(k), 3) for k in (0, 4, 16, 96, 1000)]
    [0.5, 0.25, 0.1, 0.02, 0.01]
    """

    first: float
    last: float
    pace: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.first <= 1 and self.last <= self.first and self.pace > 0):
            raise ValueError(
                "averaging takes weights 0 <= last <= first <= 1, first above 0, and a positive "
                f"pace, got first={self.first}, last={self.last} and pace={self.pace}."
            )

    def _at(self, step: int) -> float:
        return max(self.last, min(self.first, self.pace / (step + self.pace / self.first)))


@dataclass(frozen=True)
class times:
    """Another schedule, times a factor.

    >>> times(linear(0.0, 1.0, steps=4), 0.5)(4)
    0.5
    """

    schedule: Schedule
    factor: float

    def __call__(self, step: int) -> float:
        return self.factor * self.schedule(step)


def scaled(rate: float | Schedule, factor: float) -> float | Schedule:
    """The same rate or schedule, multiplied by ``factor`` at every step.

    >>> scaled(0.5, 0.1), scaled(falling(0.5), 0.1), scaled(cosine(0.5, steps=9), 0.1)(0)
    (0.05, falling(value=0.05, start=0, steps=0), 0.05)
    """
    if isinstance(rate, falling):
        return replace(rate, value=factor * rate.value)
    if isinstance(rate, times):
        return times(rate.schedule, factor * rate.factor)
    return times(rate, factor) if callable(rate) else factor * rate


def as_schedule(value: float | Schedule) -> Schedule:
    """A number becomes ``constant(number)``; a callable is returned as it is.

    >>> as_schedule(0.01)
    constant(value=0.01)
    """
    if isinstance(value, Real):
        return constant(float(value))
    # The class itself is callable too, and would give back a schedule instead of a number.
    if callable(value) and not isinstance(value, type):
        return value
    raise TypeError(
        f"A learning rate is a number or a callable from step to number, got {value!r}; "
        f"for example 0.01 or cosine(0.1, steps=1000)."
    )
