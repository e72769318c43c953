"""Schedules give exact values, hold their last one and refuse nonsense when they are built."""

import math
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from bayesrule import schedules
from bayesrule.schedules import (
    Schedule,
    as_schedule,
    averaging,
    constant,
    cosine,
    exponential,
    falling,
    linear,
    piecewise,
    scaled,
    times,
)

ALL = [
    constant(0.1),
    cosine(0.1, 10, warmup=2, final=0.01),
    exponential(0.1, 0.9),
    piecewise(0.1, {5: 0.5, 8: 0.1}),
    linear(0.0, 0.1, 4),
    falling(0.1),
    falling(0.1, 3, 5),
    averaging(0.5, 0.01),
]


def values(schedule: Schedule, *steps: int) -> list[float]:
    return [schedule(step) for step in steps]


def test_constant() -> None:
    assert values(constant(3), 0, 1, 10**9) == [3.0, 3.0, 3.0]


def test_cosine_without_warmup() -> None:
    schedule = cosine(2.0, steps=4)
    expected = [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0]
    assert values(schedule, 0, 1, 2, 3, 4, 400) == pytest.approx(expected, abs=1e-15)
    assert schedule(0) == 2.0
    assert schedule(4) == 0.0


def test_cosine_warms_up_in_equal_steps_to_the_top() -> None:
    schedule = cosine(1.0, steps=7, warmup=3, final=0.5)
    assert values(schedule, 0, 1, 2, 3) == [0.25, 0.5, 0.75, 1.0]
    assert values(schedule, 5, 7, 70) == pytest.approx([0.75, 0.5, 0.5])


def test_cosine_may_rise_to_a_higher_final_value() -> None:
    assert values(cosine(1.0, steps=2, final=3.0), 0, 1, 2) == pytest.approx([1.0, 2.0, 3.0])


def test_exponential() -> None:
    assert values(exponential(1.0, 0.5), 0, 1, 2, 10) == [1.0, 0.5, 0.25, 2.0**-10]
    assert exponential(1.0, 0.5)(10**6) == 0.0


def test_piecewise_multiplies_up_whatever_the_order() -> None:
    schedule = piecewise(8.0, {6: 0.25, 3: 0.5})
    assert values(schedule, 0, 2, 3, 5, 6, 100) == [8.0, 8.0, 4.0, 4.0, 1.0, 1.0]
    assert schedule == piecewise(8.0, {3: 0.5, 6: 0.25})
    assert piecewise(8.0, {0: 0.5})(0) == 4.0
    assert piecewise(8.0, {})(5) == 8.0


def test_piecewise_is_cut_off_from_the_callers_dict() -> None:
    factors = {3: 0.5}
    schedule = piecewise(1.0, factors)
    factors[3] = 0.0
    assert schedule(3) == 0.5


def test_linear_up_and_down() -> None:
    assert values(linear(0.0, 1.0, 4), 0, 1, 2, 3, 4, 5) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert values(linear(3.0, 1.0, 2), 0, 1, 2, 9) == [3.0, 2.0, 1.0, 1.0]
    # 0.1 + (0.7 - 0.1) is not 0.7 in floating point; the end is the end.
    assert linear(0.1, 0.7, 3)(3) == 0.7


def test_falling_stays_until_it_is_told_how_long_training_is() -> None:
    assert values(falling(0.3), 0, 1, 10**9) == [0.3, 0.3, 0.3]
    assert values(falling(0.3, start=7), 0, 10**9) == [0.3, 0.3]
    schedule = falling(2.0, start=3, steps=4)
    assert values(schedule, 0, 2, 3) == [2.0, 2.0, 2.0]
    halves = [1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)]
    assert values(schedule, 4, 5, 6) == pytest.approx(halves)
    assert values(schedule, 7, 8, 10**9) == [0.0, 0.0, 0.0]


def test_averaging_is_the_first_weight_then_pace_over_count_then_the_last() -> None:
    schedule = averaging(0.25, 0.01, pace=3.0)
    assert schedule(0) == 0.25
    assert values(schedule, 1, 10) == pytest.approx([3 / 13, 3 / 22])
    assert schedule(250) == pytest.approx(3 / 262)
    assert values(schedule, 288, 10**6) == [0.01, 0.01]
    assert values(averaging(0.1, 0.1), 0, 100) == [0.1, 0.1]


def test_a_mean_of_all_estimates_is_an_average_with_pace_one() -> None:
    schedule, mean, seen = averaging(1.0, 0.0, pace=1.0), 0.0, [3.0, -1.0, 4.0, 1.5]
    for k, estimate in enumerate(seen):
        mean += schedule(k) * (estimate - mean)
    assert mean == pytest.approx(sum(seen) / len(seen))


def test_scaled_keeps_the_kind_of_rate() -> None:
    assert scaled(0.5, 0.25) == 0.125
    assert scaled(falling(0.5, 3, 4), 0.25) == falling(0.125, 3, 4)
    half = scaled(linear(0.0, 1.0, 4), 0.5)
    assert half == times(linear(0.0, 1.0, 4), 0.5)
    assert scaled(half, 0.5) == times(linear(0.0, 1.0, 4), 0.25)
    assert [as_schedule(half)(step) for step in (0, 2, 9)] == [0.0, 0.25, 0.5]


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_printing_comparing_and_rebuilding(schedule: Schedule) -> None:
    rebuilt = eval(repr(schedule), vars(schedules).copy())
    assert rebuilt == schedule
    assert hash(rebuilt) == hash(schedule)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert all(isinstance(schedule(step), float) for step in range(12))
    assert values(rebuilt, *range(12)) == values(schedule, *range(12))


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_frozen_and_no_negative_step(schedule: Schedule) -> None:
    with pytest.raises(AttributeError):
        schedule.value = 1.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="step of 0 or more, got -1"):
        schedule(-1)


def test_different_schedules_differ() -> None:
    assert len(set(ALL)) == len(ALL)
    assert cosine(0.1, 10) != cosine(0.1, 11)
    assert constant(1.0) != exponential(1.0, 1.0)


def test_numpy_numbers_are_stored_plain() -> None:
    value: Any = np.float32(0.5)
    steps: Any = np.int64(5)
    assert repr(cosine(value, steps)) == "cosine(value=0.5, steps=5, warmup=0, final=0.0)"
    assert as_schedule(value) == constant(0.5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: constant(math.nan), "value, got nan"),
        (lambda: constant(math.inf), "value, got inf"),
        (lambda: constant(-0.1), "value, got -0.1"),
        (lambda: constant(cast(Any, "0.1")), "value, got '0.1'"),
        (lambda: cosine(0.1, -1), "steps, got -1"),
        (lambda: cosine(0.1, 0), "steps, got 0"),
        (lambda: cosine(0.1, cast(Any, 2.5)), "steps, got 2.5"),
        (lambda: cosine(0.1, 5, warmup=-1), "warmup, got -1"),
        (lambda: cosine(0.1, 5, warmup=5), "warmup=5 and steps=5"),
        (lambda: cosine(0.1, 5, final=math.nan), "final, got nan"),
        (lambda: exponential(0.1, 1.5), "rate <= 1, got 1.5"),
        (lambda: exponential(0.1, 0.0), "0 < rate"),
        (lambda: exponential(0.1, math.nan), "rate, got nan"),
        (lambda: piecewise(0.1, {-1: 0.5}), "step of factors, got -1"),
        (lambda: piecewise(0.1, {1: -0.5}), "factor, got -0.5"),
        (lambda: piecewise(0.1, {cast(Any, 1.5): 0.5}), "step of factors, got 1.5"),
        (lambda: linear(0.1, math.inf, 5), "end, got inf"),
        (lambda: linear(math.nan, 0.1, 5), "start, got nan"),
        (lambda: linear(0.1, 0.0, 0), "steps, got 0"),
        (lambda: falling(0.1, -1), "start, got -1"),
        (lambda: falling(0.1, 0, cast(Any, 2.5)), "steps, got 2.5"),
        (lambda: averaging(0.0, 0.0), "first above 0"),
        (lambda: averaging(0.1, 0.2), "first=0.1, last=0.2"),
        (lambda: averaging(0.1, 0.01, pace=0.0), "positive pace"),
    ],
)
def test_checked_when_built(build: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_as_schedule() -> None:
    assert as_schedule(0.5) == constant(0.5)
    assert as_schedule(1) == constant(1.0)
    schedule = linear(0.0, 1.0, 2)
    assert as_schedule(schedule) is schedule
    assert as_schedule(lambda step: 2.0 * step)(3) == 6.0


@pytest.mark.parametrize("wrong", ["0.1", None, cosine])
def test_as_schedule_refuses_what_gives_no_number(wrong: object) -> None:
    with pytest.raises(TypeError, match="a number or a callable from step to number, got"):
        as_schedule(wrong)  # type: ignore[arg-type]


def test_as_schedule_checks_the_number() -> None:
    with pytest.raises(ValueError, match="got nan"):
        as_schedule(math.nan)
