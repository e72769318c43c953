"""The comparison of graphical models: what it measures, and what it calls good."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.beyond import graphical
from benchmarks.pictures import growth

FINE = {"model": "mixture", "ratio": 1.0, "objective": -1.0, "their_objective": -1.0, "margin": 0.0}
SLOW, UNLIKELY = {**FINE, "ratio": 2.1}, {**FINE, "objective": -1.1}


def result(*rows: dict[str, Any], growth: float = 2.0) -> dict[str, Any]:
    return {"results": [*rows, {"model": "alone"}], "growth": {"mixture": growth}}


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (result(FINE), True),
        (result(FINE, SLOW), False),
        (result(FINE, UNLIKELY), False),
        (result(FINE, growth=3.5), False),
    ],
    ids=["fine", "slow", "unlikely", "not in proportion"],
)
def test_what_is_good_is_quick_likely_and_in_proportion(found: dict[str, Any], good: bool) -> None:
    assert graphical.good(found) is good


def test_both_mixtures_come_to_the_same_likelihood() -> None:
    row = graphical._mixture(2000, passes=2)
    assert row["objective"] == pytest.approx(row["their_objective"], rel=1e-9)


def test_the_time_of_a_pass_is_the_difference_of_the_shortest_times() -> None:
    quiet, busy = graphical._Timed(1.0, 3.0, "first"), graphical._Timed(5.0, 3.5, "last")
    assert graphical._shortest([quiet, busy], passes=4) == (0.5, "last")


def test_growth_is_drawn_from_nothing_on() -> None:
    rows = [
        {"model": name, "size": size, "seconds": size / 1e4, "their_seconds": size / 5e3}
        for name in ("mixture", "topics", "states")
        for size in (1000, 2000)
    ]
    drawn = growth.of_graphical({"results": rows})["growth.svg"]
    assert drawn.count('class="title"') == 3
    assert drawn.count('class="line"') >= 6
    assert "hmmlearn, no gaps" in drawn
