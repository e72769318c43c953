"""Learning-rate schedules: plain callables from the step (0, 1, 2, ...) to a number.

Each is a frozen dataclass, so that it prints as the call that builds it, compares by value and
can be kept in a checkpoint. After their last step they hold their final value. They are named in
lower case because they are read as functions: ``learning_rate=cosine(0.1, steps=1000)``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real

Schedule = Callable[[int], float]


# The least that whole numbers may be, by name; all others are real numbers of 0 or more.
_WHOLE = {"steps": 1, "warmup": 0, "a step of factors": 0}


def _plain(name: str, value: float) -> float:
    """A plain int or float, so that printing and comparing are exact."""
    if name in _WHOLE:
        if isinstance(value, Integral) and value >= _WHOLE[name]:
            return int(value)
        takes = f"a whole number of {_WHOLE[name]} or more"
    else:
        if isinstance(value, Real) and math.isfinite(value) and value >= 0:
            return float(value)
        takes = "a finite number of 0 or more"
    raise ValueError(f"A schedule takes {takes} as {name}, got {value!r}.")


class _Checked(ABC):
    """Refuses bad numbers and negative steps in one place; the schedules answer ``_at``."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(name, value))

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
    """Steps down (or up) at the given steps: value · ∏ of the factors at steps <= t.

    The factors multiply up, as in {30: 0.1, 60: 0.1} for 1, 0.1, 0.01 times the value. They are
    kept as sorted pairs, which are also accepted.

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
        checked = [(_plain("a step of factors", s), _plain("a factor", f)) for s, f in pairs]
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
