"""From a person's table to predictions: what works, and which faults of the data are named."""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from calling import FAST, ROWS, call, frame, only_line, table

pandas = pytest.importorskip("pandas")

# From table to predictions


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_fit_and_predict_numbers(ending: str, tmp_path: Path) -> None:
    file, content = tmp_path / f"t.{ending}", frame().drop(columns="kind")
    if ending == "csv":
        content.to_csv(file, index=False)
    elif ending == "parquet":
        pytest.importorskip("pyarrow")
        content.to_parquet(file)
    else:
        np.savez(file, **{k: content[k].to_numpy().astype(None) for k in ("x", "z", "price")})
    said = call("fit", file, "--target", "price", "--out", tmp_path / "run", *FAST)
    assert (said.code, said.err) == (0, "")
    assert "40 different numbers: regression" in said.out
    assert "On 4 rows that were held out" in said.out
    assert f"Next: bayesrule predict {tmp_path / 'run'} NEW.csv" in said.out
    said = call("predict", tmp_path / "run", file, "--level", "0.5")
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert (said.code, len(rows)) == (0, ROWS)
    for row in rows:
        value = {name: float(text) for name, text in row.items()}
        assert value["lower_0.5"] < value["mean"] < value["upper_0.5"]
        parts = value["epistemic_std"] ** 2 + value["aleatoric_std"] ** 2
        assert parts == pytest.approx(value["std"] ** 2, rel=1e-4)
    assert "RMSE" in said.err


def test_fit_and_predict_classes(tmp_path: Path) -> None:
    file, run = table(tmp_path, drop=("price",)), tmp_path / "run"
    said = call("fit", file, "--target", "kind", "--out", run, "--patience", "1", *FAST, "--json")
    document = json.loads(said.out)
    assert (said.code, said.err, document["task"]) == (0, "", "classification")
    assert document["rows"] == {"train": 32, "validation": 4, "test": 4}
    said = call("predict", run, file)
    rows = list(csv.DictReader(io.StringIO(said.out)))
    for row in rows:
        up, down = float(row["p(up)"]), float(row["p(down)"])
        assert up + down == pytest.approx(1.0, abs=1e-5)
        assert row["predicted_kind"] == ("up" if up > down else "down")
        assert 0.0 <= float(row["mutual_information"]) <= float(row["entropy"]) + 1e-6


@pytest.mark.parametrize("more", [[], ["--heteroscedastic"], ["--target", "kind"]])
def test_a_method_without_learning_rate_and_draws(more: list[str], tmp_path: Path) -> None:
    file, run = table(tmp_path, drop=()), tmp_path / "run"
    words = ["fit", file, "--target", "price", "--method", "tagi", "--out", run, *FAST, *more]
    said = call(*words)
    assert (said.code, said.err) == (0, "")
    own = call("predict", run, file)
    assert own.code == 0
    assert own == call("predict", run, file, "--how", "moments")
    assert own.out != call("predict", run, file, "--how", "mean").out


def test_moments_are_refused_where_weights_vary_together(tmp_path: Path) -> None:
    file, run = table(tmp_path), tmp_path / "run"
    call("fit", file, "--target", "price", "--method", "laplace", "--out", run, *FAST)
    line = only_line(call("predict", run, file, "--how", "moments"))
    assert "Gaussian over DenseMatrix" in line
    assert "knows of how they vary together" in line


def test_json_is_all_that_stands_on_standard_output(tmp_path: Path) -> None:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not json")

    def document(*words: str | Path) -> Any:
        said = call(*words, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out, parse_constant=refuse)

    run, file = tmp_path / "run", table(tmp_path)
    fitted = document("fit", file, "--target", "price", "--out", run, "--seed", "3", *FAST)
    assert fitted == json.loads((run / "run.json").read_text())
    assert (fitted["seed"], fitted["epochs"], fitted["method"]) == (3, 1, "vogn")
    assert shlex.split(fitted["command"])[:3] == ["bayesrule", "fit", str(file)]
    predicted = document("predict", run, file, "--out", tmp_path / "p.csv")
    assert len(predicted["predictions"]) == ROWS
    assert len((tmp_path / "p.csv").read_text().splitlines()) == ROWS + 1
    assert {row["method"] for row in document("methods")} >= {"vogn", "laplace", "ridge"}


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    def metrics(folder: str, seed: str) -> dict[str, float]:
        words = ("--out", tmp_path / folder, "--seed", seed, "--json", *FAST)
        return json.loads(call("fit", table(tmp_path), "--target", "price", *words).out)["metrics"]

    first = metrics("a", "1")
    assert metrics("b", "1") == first
    assert metrics("c", "2") != first


def test_what_is_odd_about_the_columns_is_said(tmp_path: Path) -> None:
    file = table(tmp_path, x={3: np.nan}, k=1)
    words = ("--target", "price", "--missing", "impute", "--out", tmp_path / "run", *FAST)
    said = call("fit", file, *words)
    assert said.code == 0
    assert "Column 'k' is always 1: left out." in said.out
    assert "Column 'x': missing values are filled with the median" in said.out


def test_predictions_come_where_the_target_is_odd_or_columns_are_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    call("fit", table(tmp_path, drop=("price",)), "--target", "kind", "--out", run, *FAST)
    said = call(
        "predict", run, table(tmp_path, "new.csv", drop=("price",), kind={0: "sideways"}, more=1)
    )
    assert said.code == 0
    assert len(said.out.splitlines()) == ROWS + 1
    assert "Not used: 'more'." in said.err
    assert "No scores: Column 'kind'" in said.err


# Faults of the data


def test_a_mistyped_target_is_recognised(tmp_path: Path) -> None:
    assert "Did you mean 'price'?" in only_line(call("fit", table(tmp_path), "--target", "prize"))
    line = only_line(call("fit", table(tmp_path)))
    assert "name it with --target. Its columns are 'x', 'z'" in line


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"x": {3: np.nan}}, ["Column 'x'", "row 3 (line 5)", "--missing impute"]),
        ({"z": {5: np.inf}}, ["Column 'z'", "row 5 (line 7)", "--drop"]),
        ({"price": {5: np.nan}}, ["Column 'price'", "row 5 (line 7)"]),
        ({"price": 7.0}, ["'price'", "is always 7"]),
        ({"x": 1, "z": 1, "colour": "red"}, ["no feature to learn from"]),
        ({"price": "up"}, ["one class only, 'up'"]),
        ({"price": [f"c{i}" for i in range(ROWS)]}, ["40 different values", "--task regression"]),
    ],
)
def test_faults_of_cells_are_named(cells: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    file, out = table(tmp_path, **cells), tmp_path / "run"
    line = only_line(call("fit", file, "--target", "price", "--out", out))
    for word in words:
        assert word in line
    assert not out.exists()


def test_slips_are_refused_and_categories_can_be_named(tmp_path: Path) -> None:
    file, run = table(tmp_path, x=["?", *(f"{i}.5" for i in range(1, ROWS))]), tmp_path / "run"
    words = ("fit", file, "--target", "price", "--out", run, *FAST)
    line = only_line(call(*words))
    assert "'?' in row 0 (line 2): a placeholder" in line
    assert "name it with --categories" in line
    assert call(*words, "--categories", "x", "--test-fraction", "0").code == 0
    assert call("predict", run, file).code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("x,price\n", "no rows"),
        ("x,price\n1,2\n", "has 1 row"),
        ("x,price\n1,2\n2,3\n", "--test-fraction 0 to learn from all"),
    ],
)
def test_too_few_rows(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(content)
    assert words in only_line(call("fit", file, "--target", "price", "--out", tmp_path / "run"))


def test_two_rows_are_enough_where_none_is_held_out(tmp_path: Path) -> None:
    file, run = tmp_path / "t.csv", tmp_path / "run"
    file.write_text("x,price\n1,2\n2,3\n")
    words = ("--target", "price", "--out", run, "--test-fraction", "0", *FAST, "--json")
    said = call("fit", file, *words)
    assert said.code == 0
    assert json.loads(said.out)["metrics"] == {}
    assert call("predict", run, file).code == 0


def test_what_could_not_be_scored_is_refused_before_the_work(tmp_path: Path) -> None:
    """The first row is held out for one of the seeds, and no other row is as far away."""
    file, out = table(tmp_path, x=[1e300, *(i * 1e-30 for i in range(1, ROWS))]), tmp_path / "run"
    for seed in range(20):
        said = call("fit", file, "--target", "price", "--out", out, "--seed", str(seed), *FAST)
        if said.code:
            break
        shutil.rmtree(out)
    assert "'x'" in only_line(said)
    assert "too large to scale in row 0 (line 2)" in said.err
    assert not out.exists()


def test_new_rows_that_do_not_fit_the_model(tmp_path: Path) -> None:
    run, file = tmp_path / "run", table(tmp_path)
    call("fit", file, "--target", "price", "--out", run, *FAST)
    pink = table(tmp_path, "pink.csv", colour={2: "pink"})
    line = only_line(call("predict", run, pink))
    assert "'pink' in row 2 (line 4)" in line
    assert "--unseen ignore" in line
    assert call("predict", run, pink, "--unseen", "ignore").code == 0
    assert "lacks 'z'" in only_line(
        call("predict", run, table(tmp_path, "n.csv", drop=("z", "kind")))
    )
    # `predict` itself cannot fill in what `fit` did not learn to.
    assert "fit's --missing" in only_line(
        call("predict", run, table(tmp_path, "m.csv", x={3: np.nan}))
    )
    assert "There is no file" in only_line(call("predict", run, tmp_path / "t.cvs.csv"))
