"""Methods at their defaults on tables: what is kept, gone on with, and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calling import bench, only_line

from benchmarks.data.uci import uci
from benchmarks.defaults import tables
from benchmarks.defaults.rows import Rows
from benchmarks.defaults.standings import standings


def _row(name: str, part: int, method: str, score: float) -> dict[str, Any]:
    found = {"log_likelihood": score, "constant": -1.4, "seconds": 1.0}
    return {"set": name, "part": part, "method": method, **found}


def test_families_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "families.json"
    words = ["families", "--families", "few_rows,rare_class", "--seeds", "1", "--out", out]
    said = bench(*words, "--methods", "ridge,logistic regression")
    assert said.code == 0, said.err
    found = json.loads(out.read_text())
    # ridge is for numbers, logistic regression for classes.
    assert [(r["set"], r["method"]) for r in found["results"]] == [
        ("few_rows", "ridge"),
        ("rare_class", "logistic regression"),
    ]
    assert found["results"][0]["log_likelihood"] > found["results"][0]["constant"]
    assert found["command"].startswith("python -m benchmarks families")
    said = bench(*words, "--methods", "ridge,constant")
    assert "1 rows" not in said.err
    assert "2 rows are there already" in said.err
    assert [r["method"] for r in json.loads(out.read_text())["results"]][:2] == [
        "ridge",
        "constant",
    ]


def test_scores_are_in_units_of_standardised_targets() -> None:
    found = tables.row("families", "few_rows", 0, "constant")
    assert found["log_likelihood"] == pytest.approx(found["constant"], abs=0.05)
    assert found["rmse"] == pytest.approx(1.0, abs=0.2)


def test_unknown_names_are_answered_in_one_line() -> None:
    assert "'few'" in only_line(bench("families", "--families", "few"))
    assert "'mapp'" in only_line(bench("families", "--methods", "mapp"))


@pytest.mark.usefixtures("real_data")
def test_a_uci_set_is_split_as_is_standard() -> None:
    sheet, one = tables.standard("yacht", 3), uci("yacht", 3)
    _, test = sheet.rows()
    assert sheet.table.rows(test).frame["y"].tolist() == one.y_test.tolist()
    rows = tables.uci_splits(["yacht", "protein"], 7, ["map"])
    assert [item["set"] for item in rows.items].count("yacht") == 7
    assert [item["set"] for item in rows.items].count("protein") == 5


def test_a_failure_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    def work(number: int) -> dict[str, Any]:
        return {"found": 1 / number}

    rows = Rows("some", {}, [{"number": 0}, {"number": 2}], work)
    found = rows.run()
    assert found["results"][1] == {"number": 2, "found": 0.5}
    assert "ZeroDivisionError" in found["results"][0]["failed"]
    file = tmp_path / "some.json"
    file.write_text(json.dumps(found))
    assert rows.read(str(file)) == [{"number": 2, "found": 0.5}]


def test_methods_are_held_against_map_part_by_part() -> None:
    rows = [
        *(_row("a", part, "map", score) for part, score in enumerate([0.0, -10.0])),
        # Nearly as good in each part: within an error that unpaired scores would hide.
        *(_row("a", part, "near", score) for part, score in enumerate([-1.0, -9.5])),
        *(_row("a", part, "worse", score) for part, score in enumerate([-0.1, -10.1])),
        *({"set": "a", "part": part, "method": "broken", "failed": "NaN"} for part in range(2)),
    ]
    found = standings(rows)
    counts = {
        method: (one["as_good"], one["as_good_within_error"], one["failed"])
        for method, one in found["methods"].items()
    }
    assert counts == {"map": (1, 1, 0), "near": (0, 1, 0), "worse": (0, 0, 0), "broken": (0, 0, 2)}
    assert found["methods"]["broken"]["mean_rank"] == 4.0
    assert found["methods"]["worse"]["worse_than_constant"] == 1
    assert found["sets"]["a"]["near"]["log_likelihood"] == pytest.approx(-5.25)
