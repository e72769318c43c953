"""What `bayesrule predict` writes, and where: all digits, finite, harmless, and over no input."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import FAST, ROWS, Said, call, contents, frame, only_line, table

from bayesrule.app.commands.predicted import as_csv
from bayesrule.app.saved import read_model

pandas = pytest.importorskip("pandas")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    words = ("fit", table(tmp_path), "--target", "price", "--out", tmp_path / "run", *FAST)
    assert call(*words).code == 0
    return tmp_path / "run"


def rows(said: Said) -> list[dict[str, str]]:
    assert said.code == 0, said.err
    return list(csv.DictReader(io.StringIO(said.out)))


# Digits


def test_a_large_target_with_a_small_spread_keeps_its_digits(tmp_path: Path) -> None:
    file, out = table(tmp_path, price=1e8 + frame().x), tmp_path / "run"
    words = ("--method", "ridge", "--features", "x", "--json")
    fitted = call("fit", file, "--target", "price", "--out", out, *words)
    assert json.loads(fitted.out)["metrics"]["rmse"] == pytest.approx(0.0, abs=0.05)
    said = call("predict", out, file)
    found = [float(row["mean"]) for row in rows(said)]
    # float32 knows 1e8 to a multiple of 8 only, six digits to one of 100.
    np.testing.assert_allclose(np.array(found) - 1e8, frame().x, atol=0.05)
    assert float(rows(said)[0]["upper_0.9"]) > found[0]


def test_figures_read_back_as_they_are(run: Path, tmp_path: Path) -> None:
    printed = rows(call("predict", run, table(tmp_path)))
    document = json.loads(call("predict", run, table(tmp_path), "--json").out)
    for row, exact in zip(printed, document["predictions"], strict=True):
        assert {name: float(text) for name, text in row.items()} == exact


def test_classes_that_differ_in_the_last_digit_stay_apart(tmp_path: Path) -> None:
    labels = np.where(frame().x > 0, 1000000.1, 1000000.2)
    file, out = table(tmp_path, price=labels), tmp_path / "run"
    words = ("--task", "classification", "--epochs", "60")
    call("fit", file, "--target", "price", "--out", out, *words)
    found = {row["predicted_price"] for row in rows(call("predict", out, file))}
    assert found == {"1000000.1", "1000000.2"}


# Finite


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_prediction_that_is_not_finite_is_refused_by_row_and_column(
    more: list[str], run: Path, tmp_path: Path
) -> None:
    far, out = table(tmp_path, "far.csv", x={3: 1e37}, z={3: -1e37}), tmp_path / "p.csv"
    said = call("predict", run, far, "--out", out, *more)
    line = only_line(said)
    assert "The predicted '" in line
    assert "in row 3 (line 5), so nothing was written" in line
    assert "standard deviations from the mean of the training data" in line
    assert not out.exists()


def test_draws_from_a_belief_that_is_flat_are_refused(tmp_path: Path) -> None:
    """Adam's belief says nothing of units that no row switches on."""
    file, out = tmp_path / "t.csv", tmp_path / "run"
    file.write_text("x,y\n1,1.5\n2,2.5\n3,4\n")
    words = ("--target", "y", "--method", "adam", "--epochs", "1", "--test-fraction", "0")
    assert call("fit", file, *words, "--out", out).code == 0
    assert "nothing to draw from" in only_line(call("predict", out, file, "--draws", "3"))
    assert len(rows(call("predict", out, file))) == 3


# Formulas


def test_text_that_a_spreadsheet_would_run_is_made_harmless(tmp_path: Path) -> None:
    names = {"up": "=HYPERLINK(1)", "down": "@SUM(1)"}
    content = frame().drop(columns="price").replace({"kind": names})
    file, out = tmp_path / "k.csv", tmp_path / "run"
    content.to_csv(file, index=False)
    call("fit", file, "--target", "kind", "--out", out, *FAST)
    said = call("predict", out, file)
    assert {row["predicted_kind"] for row in rows(said)} <= {f"'{name}" for name in names.values()}
    assert "40 cells that a spreadsheet would run have an apostrophe before them." in said.err
    document = json.loads(call("predict", out, file, "--json").out)
    assert {row["predicted_kind"] for row in document["predictions"]} <= {*names.values()}


@pytest.mark.parametrize("cell", ["=1", "+a", "-a", "@a", "\ta", "\ra", "-1+1", "+1 2"])
def test_formulas(cell: str) -> None:
    text, harmless = as_csv({"a": [cell]})
    assert list(csv.reader(io.StringIO(text, newline="")))[1] == [f"'{cell}"]
    assert harmless == 1


def test_harmless_cells_stay_different() -> None:
    text, harmless = as_csv({"a": ["=1", "'=1", "''=1", "'a", "'-1", "'"]})
    written = [row[0] for row in csv.reader(io.StringIO(text))][1:]
    assert written == ["'=1", "''=1", "'''=1", "'a", "'-1", "'"]
    assert harmless == 3


@pytest.mark.parametrize("cell", ["a", "a=1", "-1", "+1.5e3", "-inf", " =1", "", "007", -3, -0.5])
def test_what_is_no_formula_stays(cell: Any) -> None:
    text, harmless = as_csv({"a": [cell]})
    assert list(csv.reader(io.StringIO(text)))[1] == [str(cell)]
    assert harmless == 0


# Names of rows


def test_names_of_rows_are_carried_along_unchanged(run: Path, tmp_path: Path) -> None:
    ids = ["007", "1.0", "1e5", "NA", "", "a,b", 'say "x"', "two\nlines", "-5", "é"]
    ids += [f"n{i}" for i in range(ROWS - len(ids))]
    file = tmp_path / "new.csv"
    frame().assign(customer=ids).drop(columns=["kind", "price"]).to_csv(file, index=False)
    said = call("predict", run, file, "--id", "customer")
    assert [row["customer"] for row in rows(said)] == ids
    assert next(iter(rows(said)[0])) == "customer"
    assert said.err == ""
    document = json.loads(call("predict", run, file, "--id", "customer", "--json").out)
    assert [row["customer"] for row in document["predictions"]] == ids


def test_names_of_rows_in_other_files(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "new.parquet"
    days = pandas.date_range("2020-01-01", periods=ROWS)
    content = frame().assign(number=range(ROWS), day=days, text=["a", None] * (ROWS // 2))
    content.to_parquet(file)
    for name, expected in (("number", "1"), ("day", "2020-01-02 00:00:00"), ("text", "")):
        assert rows(call("predict", run, file, "--id", name))[1][name] == expected
        assert call("predict", run, file, "--id", name, "--json").code == 0


def test_a_column_that_cannot_name_rows(run: Path, tmp_path: Path) -> None:
    line = only_line(call("predict", run, table(tmp_path), "--id", "prize"))
    assert "no column 'prize'. Did you mean 'price'?" in line
    named = table(tmp_path, "m.csv", mean=1)
    assert "Rename it" in only_line(call("predict", run, named, "--id", "mean"))


# Places


def test_an_input_is_never_replaced(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = table(tmp_path, "new.csv"), tmp_path / "link.csv"
    link.symlink_to(file)
    before = file.read_bytes()
    monkeypatch.chdir(tmp_path)
    for data, out in ((file, file), (file, link), (link, file), ("new.csv", "run/../new.csv")):
        assert "the table to predict" in only_line(call("predict", run, data, "--out", out))
        assert file.read_bytes() == before
    assert link.is_symlink()


@pytest.mark.parametrize(
    "name", ["model.json", "run.json", "final.safetensors", "begin-2.safetensors"]
)
def test_a_file_of_a_trained_model_is_never_replaced(name: str, run: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(run / name)
    before = contents(run)
    for out in (run / name, link):
        line = only_line(call("predict", run, table(tmp_path), "--out", out))
        assert "is a file of a trained model" in line
    assert contents(run) == before
    assert call("predict", run, table(tmp_path), "--out", run / "p.csv").code == 0
    read_model(run)


def test_links_and_modes_are_kept(run: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "old.csv", tmp_path / "link.csv"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    assert call("predict", run, table(tmp_path), "--out", link).code == 0
    assert link.is_symlink()
    assert file.read_text().startswith("mean,")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_stays_a_pipe(run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call("predict", run, table(tmp_path), "--out", pipe).code == 0
        assert os.read(reader, 1 << 16).startswith(b"mean,")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_places_that_are_no_files(run: Path, tmp_path: Path) -> None:
    for out, expected in (("", "--out: takes a path"), (tmp_path, "is a folder; --out takes a")):
        assert expected in only_line(call("predict", run, table(tmp_path), "--out", out))
