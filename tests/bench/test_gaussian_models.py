"""The comparison of Gaussian models: what it measures, and what it calls good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from data_places import real_data

from benchmarks.beyond import gaussian_models

__all__ = ["real_data"]

FINE = {"model": "GP", "set": "a", "objective": -1.0, "their_objective": -1.0, "margin": 0.01}
QUICK, SLOW = {**FINE, "ratio": 1.9}, {**FINE, "ratio": 2.1}
BETTER, WORSE = {**FINE, "objective": -0.5}, {**FINE, "objective": -1.4}
ALONE = {"model": "Kalman", "set": "b", "objective": -9.0, "margin": 0.01}


@pytest.mark.parametrize(
    ("rows", "good"),
    [
        ([FINE, QUICK, ALONE], True),
        ([FINE, SLOW], False),
        ([FINE, WORSE], False),
        # Splits of one set are averaged, sets are not.
        ([BETTER, WORSE], True),
        ([BETTER, {**WORSE, "set": "b"}], False),
    ],
    ids=["fine", "slow", "worse", "better on average", "worse on one set"],
)
def test_what_is_good_is_quick_and_likely(rows: list[dict[str, Any]], good: bool) -> None:
    assert gaussian_models.good(rows) is good


def test_gaps_are_filled_better_than_by_lines_where_there_is_a_season() -> None:
    t = np.arange(400)
    noise = 0.1 * np.random.default_rng(0).normal(size=400)
    found = gaussian_models._gaps(np.sin(2.0 * np.pi * t / gaussian_models.WEEKS) + noise, 26)
    assert found["error"] < 0.5 * found["error_of_lines"]
    assert found["coverage_of_90_%"] > 0.7


def test_answers_are_scored_by_the_probability_of_the_truth() -> None:
    probs = np.array([[0.2, 0.8], [0.5, 0.5]])
    found = gaussian_models._logs(probs, np.array([1.0, 0.0]))
    assert found == pytest.approx(0.5 * (np.log(0.8) + np.log(0.5)))


@pytest.mark.data
@pytest.mark.usefixtures("real_data")
def test_lines_are_as_likely_as_those_of_scikit_learn() -> None:
    row = gaussian_models._linear("yacht", 0)
    assert row["objective"] == pytest.approx(row["their_objective"], abs=0.01)
