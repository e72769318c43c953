"""The hostile user in small numbers, and that it sees faults which are put in its way."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from calling import bench, call

from bayesrule.app.commands import fit, predicted
from bayesrule.app.data import DataError, cells
from bayesrule.app.data.columns import LevelColumn
from benchmarks.trust.hostile import options, reading, tables, threads, whole

pytest.importorskip("pyarrow")


def quiet(_: str) -> None:
    """Says nothing."""


def test_everything_is_counted_and_nothing_is_wrong(tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    said = bench("hostile", "--tables", "60", "--calls", "30", "--rounds", "1", "--out", out)
    assert said.code == 0, said.out
    assert "60 tables, 30 calls" in said.out
    found = json.loads(out.read_text())
    assert (found["number_of_faults"], found["faults"]) == (0, [])
    outcomes = ("read", "refused")
    files = {k: v for k, v in found["tables"].items() if k != "trained on"}
    assert sum(one.get(what, 0) for one in files.values() for what in outcomes) == 60
    assert set(tables.FORMATS) <= {*files, "bars"}
    assert found["tables"]["trained on"]["cells read back"] > 100
    assert found["threads"]["learner vogn"] == {"answers": 16, "unequal": 0, "modules changed": 0}
    assert found["command"].startswith("python -m benchmarks hostile --tables 60")
    assert {"pandas", "torch"} <= set(found["versions"])


def test_the_same_number_makes_the_same_table() -> None:
    one, same, other = (tables.draw(random.Random(seed)) for seed in ("0 5", "0 5", "0 6"))
    assert one == same
    assert one != other


# Faults that are put in its way


def faults(num: int = 60) -> int:
    return int(whole.run(num, 0, 0, progress=quiet)["number_of_faults"])


def test_codes_that_are_read_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(column: list[str], decimal: str | None = None) -> list[float] | None:
        try:
            return list(map(float, column))
        except ValueError:
            return None

    monkeypatch.setattr(cells, "numbers", careless)
    assert faults() > 0


def test_levels_that_are_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LevelColumn.encode

    def encode(self: LevelColumn, *given: Any) -> Any:
        return right(self, *given)[::-1]

    monkeypatch.setattr(LevelColumn, "encode", encode)
    assert faults() > 5


def test_predictions_with_six_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    right = predicted._line
    short = lambda row: right([f"{c:g}" if isinstance(c, float) else c for c in row])  # noqa: E731
    monkeypatch.setattr(predicted, "_line", short)
    assert faults() > 0


def test_a_reader_that_refuses_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise DataError("No.")

    monkeypatch.setattr(reading, "read_table", refuse)
    assert faults() > 0


def test_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: Any) -> int:
        raise KeyError("a bug")

    findings = reading.Findings()
    monkeypatch.setattr(fit, "_recipe", broken)
    with pytest.raises(KeyError, match="a bug"):
        call("fit", "iris")
    options.grammar(20, 0, findings)
    assert whole.faults_in(findings.counts) == 0
    findings.case("fit", 7, lambda: options._done(["fit", "iris", "--out", str(tmp_path)]))
    assert findings.faults[0]["fault"] == "traceback"
    assert "a bug" in findings.faults[0]["what"]
    assert whole.faults_in(findings.counts) == 1


def test_answers_that_depend_on_the_thread() -> None:
    answers = iter(range(1000))
    counts = threads.together([lambda: str(next(answers)).encode()], rounds=8)
    assert counts == {"answers": 8, "unequal": 8}
    assert threads.together([lambda: b"same"], rounds=8) == {"answers": 8, "unequal": 0}
