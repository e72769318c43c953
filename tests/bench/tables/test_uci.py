"""The table of TAGI on UCI sets is that of the committed result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regression import uci
from benchmarks.tables.figures import uci as table

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def kept() -> dict[str, Any]:
    """The committed result."""
    found: dict[str, Any] = json.loads(
        (ROOT / "benchmarks" / "results" / "uci_tagi.json").read_text()
    )
    return found


def test_the_page_shows_the_committed_result(kept: dict[str, Any]) -> None:
    assert table(kept) in (ROOT / "docs" / "uci.md").read_text()


def test_the_committed_result_is_of_all_sets_and_splits(kept: dict[str, Any]) -> None:
    for setting in uci.SETTINGS:
        own = {one["set"]: one["splits"] for one in kept["results"] if one["setting"] == setting}
        assert own == {name: 5 if name == "protein" else 20 for name in uci.PYTAGI}
        assert kept["counts"][setting] == uci.counts(kept["results"], setting)


def test_only_what_is_at_least_as_good_is_bold(kept: dict[str, Any]) -> None:
    one = {
        "set": "boston",
        "setting": "table",
        "rmse": {"mean": 3.0, "error": 0.1},
        "log_likelihood": {"mean": -2.6, "error": 0.1},
        "published": {"rmse": 3.146, "log_likelihood": -2.578},
    }
    settings = {"table": "as told"}
    counts = {"table": uci.counts([one], "table")}
    shown = table({**kept, "results": [one], "settings": settings, "counts": counts})
    assert "| boston | 3.146 | -2.578 | **3.000 ± 0.100** | -2.600 ± 0.100 |" in shown
    assert "on 1 (RMSE), 0 (log-likelihood) and 0 (both) of 1 sets" in shown
