"""The table of docs/choosing.md is that of the results, and says what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayesrule.methods import METHODS, record
from benchmarks.tables import choosing, figures

ROOT = Path(__file__).resolve().parents[3]


def result(name: str) -> Any:
    return json.loads((figures.RESULTS / name).read_text())


def test_the_page_has_the_table_of_the_committed_results() -> None:
    ((names, table),) = choosing.PAGE.values()
    drawn = table(*map(result, names))
    assert drawn in (ROOT / "docs" / "choosing.md").read_text()
    assert [row.split("`")[1] for row in drawn.splitlines()[2:-2]] == list(METHODS)


def test_numbers_are_counted_for_each_weight() -> None:
    # Weights and their velocity; weights and two averages.
    assert choosing._kept(record("sgd")) == "2.0"
    assert choosing._kept(record("map")) == "3.0"
    assert choosing._kept(record("noisy_full")) == "all pairs"


def test_what_was_not_measured_is_a_dash() -> None:
    assert choosing._holds(None) == choosing._times({}, "vogn") == "–"
    row: dict[str, Any] = {"inside": {"90": 0.913}, "outside": {"90": 0.5}}
    assert choosing._holds(row) == "91 / 50"


@pytest.mark.parametrize("name", METHODS)
def test_needs_and_limits_are_those_of_the_records(name: str) -> None:
    one, words = record(name), choosing._asks(record(name))
    assert one.limits in words
    assert all(need in words for need in one.needs)
