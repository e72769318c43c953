"""The table of the small transformer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tables import language
from benchmarks.tables.documents import replace_between

ROOT = Path(__file__).resolve().parents[3]
MADE = {"command": "python -m benchmarks transformer", "machine": "a machine"}


def test_rows_are_means_over_seeds_and_failures_are_said() -> None:
    one = {"stage": "scratch", "method": "adamw", "seed": 0, "nll": 0.5, "ece": 0.1}
    one |= {"accuracy": 0.8, "auroc": 0.9, "seconds": 10.0, "weights": 1234}
    rows = [one, {**one, "seed": 1, "nll": 0.7}, {"stage": "adapters", "method": "ivon"}]
    rows[-1]["failed"] = "NaN"
    lines = language.transformer({**MADE, "results": rows}).splitlines()
    assert lines[2] == "| scratch | adamw | 0.600 | 0.100 | 0.800 | 0.900 | 10.00 | 1,234 | 2 |"
    assert lines[3] == "| adapters | ivon | – | – | – | – | – | – | failed |"
    assert lines[-1] == "`python -m benchmarks transformer`, a machine."


def test_the_page_has_a_place_for_the_table() -> None:
    page = (ROOT / "docs" / "transformers.md").read_text()
    for marker in language.PAGE:
        assert "here it is" in replace_between(page, marker, "here it is")
