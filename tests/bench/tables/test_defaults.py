"""The page of defaults: every table is made from a result as its benchmark keeps it."""

from __future__ import annotations

from typing import Any

from benchmarks.defaults.standings import standings
from benchmarks.tables import defaults
from benchmarks.tables.documents import ROOT, replace_between

_MADE = {"command": "python -m benchmarks some", "machine": "a machine"}


def _row(method: str, score: float) -> dict[str, Any]:
    figures = {"log_likelihood": score, "constant": -1.4, "seconds": 1.0}
    return {"set": "waves", "part": 0, "method": method, **figures}


def test_methods_stand_beside_map_the_best_first() -> None:
    rows = [_row("map", -0.5), _row("vogn", -0.25)]
    lines = defaults.tables({**_MADE, **standings(rows)}).splitlines()
    assert lines[2] == "| vogn | -0.25 | 1 of 1 | 1 of 1 | 0 | 1.0 |"
    assert lines[3] == "| map | -0.50 | 1 of 1 | 1 of 1 | 0 | 2.0 |"
    assert lines[-1] == "`python -m benchmarks some`, a machine."


def test_coverage_is_in_percent_and_failures_have_no_row() -> None:
    part = {"50": 0.48, "90": 0.9, "95": 0.951, "f90": 0.88, "rmse": 0.12, "epistemic": 0.1}
    own = {"method": "vogn", "epochs": 100.0, "inside": part, "outside": part, "diverged": 0}
    result = {**_MADE, "results": [own, {"method": "ivon", "failed": "NaN"}]}
    lines = defaults.coverage(result).splitlines()
    assert len(lines) == 5
    cells = "48/90/95 | 88 | 0.120 / 0.100"
    assert lines[2] == f"| vogn | 100 | {cells} | {cells} | 0 |"


def test_images_have_means_over_seeds_and_dashes_where_there_is_no_score() -> None:
    row = {"size": 2000, "method": "map", "nll": 0.5, "ece": 0.2, "accuracy": 0.8}
    row |= {"auroc_entropy": 0.9, "seconds": 3.0}
    lines = defaults.resnet({**_MADE, "results": [row, {**row, "nll": 0.7}]}).splitlines()
    assert lines[2] == "| 2,000 | map | 2 | 0.600 | 0.200 | 0.800 | 0.900 | – | 3.000 |"
    assert lines[3] == ""


def test_the_page_has_a_place_for_every_table() -> None:
    page = (ROOT / "docs" / "defaults.md").read_text()
    for marker in defaults.PAGE:
        assert "here it is" in replace_between(page, marker, "here it is")
