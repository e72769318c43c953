"""Rows against each other and against the published ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.regression.ranks import of_entry, ranks, summary, wins
from benchmarks.regression.tasks import PUBLISHED


def row(entry: str, name: str, rmse: float, likelihood: float, deep: bool = False) -> Any:
    return {
        "entry": entry,
        "set": name,
        "two_layers": deep,
        "rmse": {"mean": rmse},
        "log_likelihood": {"mean": likelihood},
        "options": {},
    }


def test_wins_are_counted_on_the_sets_that_both_have() -> None:
    rows = [
        row("a", "boston", 2.0, -2.0),
        row("a", "energy", 2.0, -2.0),
        row("a", "yacht", 2.0, -2.0),
        row("a", "naval", 2.0, -2.0),
        row("b", "boston", 3.0, -3.0),
        row("b", "energy", 3.0, -1.0),
        row("b", "yacht", 2.0, -2.0),  # equal is not better
        row("b", "naval", 9.0, -9.0, deep=True),
    ]
    assert wins(rows, "a", "b") == {"sets": 3, "rmse": 2, "log_likelihood": 1, "both": 1}
    assert wins(rows, "b", "a") == {"sets": 3, "rmse": 0, "log_likelihood": 1, "both": 0}
    assert wins(rows, "a", "b", two_layers=True)["sets"] == 0


def test_ranks_by_hand() -> None:
    # boston: NNG-MVG -2.336, dropout -2.40, BBB -2.500, PBP -2.574, PBP_MV -2.666
    # energy: PBP_MV -1.151, dropout -1.21, NNG-MVG -1.411, BBB -1.552, PBP -2.042
    found = ranks([row("mine", "boston", 1.0, -2.45), row("mine", "energy", 1.0, -1.0)], "mine")
    assert found == {
        "mine": (3 + 1) / 2,
        "BBB": (4 + 5) / 2,
        "PBP": (5 + 6) / 2,
        "PBP_MV": (6 + 2) / 2,
        "NNG-MVG": (1 + 4) / 2,
        "dropout": (2 + 3) / 2,
    }


def test_equals_share_a_rank_and_what_is_no_number_is_last() -> None:
    same = PUBLISHED[False]["boston"]["NNG-MVG"]["log_likelihood"][0]
    found = ranks([row("mine", "boston", 1.0, same)], "mine")
    assert (found["mine"], found["NNG-MVG"], found["dropout"]) == (1.5, 1.5, 3.0)
    assert ranks([row("mine", "boston", 1.0, math.nan)], "mine")["mine"] == 6.0


def test_ranks_add_up_whatever_is_ranked() -> None:
    for deep, num in ((False, 6), (True, 5)):
        rows = [row("mine", name, 1.0, -1.0, deep) for name in PUBLISHED[deep]]
        found = ranks(rows, "mine", deep)
        assert len(found) == num
        assert sum(found.values()) == pytest.approx(num * (num + 1) / 2)
    assert ranks([], "mine") == {}


def test_the_summary_leaves_out_what_failed_and_tagi() -> None:
    rows = [
        row("noisy_kfac", "boston", 2.0, -2.0),
        {"entry": "noisy_kfac", "set": "energy", "two_layers": False, "failed": "no"},
        row("mean_field", "boston", 3.0, -3.0),
        row("mean_field", "energy", 3.0, -3.0),
        {"set": "boston", "setting": "table"},
    ]
    assert list(of_entry(rows, "noisy_kfac")) == ["boston"]
    found = summary(rows)
    assert found["wins"] == [
        {"entry": "noisy_kfac", "over": "mean_field", "two_layers": False}
        | {"sets": 1, "rmse": 1, "log_likelihood": 1, "both": 1}
    ]
    assert [(one["entry"], one["sets"]) for one in found["ranks"]] == [
        ("noisy_kfac", 1),
        ("mean_field", 2),
    ]
