"""The command line as a newcomer meets it: what works, what is refused, and that nothing is lost."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
import torch

import bayesrule
from bayesrule import cli
from bayesrule.commands import fit as fit_command
from bayesrule.train import TrainingError

pandas = pytest.importorskip("pandas")

ROWS = 40
FAST = ["--epochs", "1", "--steps", "20"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(bayesrule.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


class Said(NamedTuple):
    """What a call gave back."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Calls the command line in this process."""

    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as leave:
            code = int(leave.code or 0)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


def frame() -> Any:
    """A small table: two numbers, a colour, a price that follows from them, and a kind."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=ROWS), rng.normal(size=ROWS)
    colour = rng.choice(["red", "green", "blue"], ROWS)
    price = 2 * x - z + (colour == "red") + 0.1 * rng.normal(size=ROWS)
    kind = np.where(price > 0, "up", "down")
    return pandas.DataFrame(dict(x=x, z=z, colour=colour, price=price, kind=kind))


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Writes the table with some cells changed: `table("a.csv", drop=["kind"], x={3: nan})`."""

    def write(name: str = "t.csv", drop: tuple[str, ...] = ("kind",), **cells: Any) -> Path:
        content = frame().drop(columns=list(drop))
        for column, values in cells.items():
            if isinstance(values, dict):
                for row, value in values.items():
                    content.loc[row, column] = value
            else:
                content[column] = values
        content.to_csv(tmp_path / name, index=False)
        return tmp_path / name

    return write


def only_line(said: Said, code: int = 2) -> str:
    """The one line that a fault is told in."""
    assert said.code == code, said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("bayesrule: ")
    return lines[0]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# From table to predictions


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_fit_and_predict_numbers(ending: str, tmp_path: Path, call: Callable[..., Said]) -> None:
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


def test_fit_and_predict_classes(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    file, run = table(drop=("price",)), tmp_path / "run"
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


def test_json_is_all_that_stands_on_standard_output(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not json")

    def document(*words: str | Path) -> Any:
        said = call(*words, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out, parse_constant=refuse)

    run, file = tmp_path / "run", table()
    fitted = document("fit", file, "--target", "price", "--out", run, "--seed", "3", *FAST)
    assert fitted == json.loads((run / "run.json").read_text())
    assert (fitted["seed"], fitted["epochs"], fitted["method"]) == (3, 1, "vogn")
    assert shlex.split(fitted["command"])[:3] == ["bayesrule", "fit", str(file)]
    predicted = document("predict", run, file, "--out", tmp_path / "p.csv")
    assert len(predicted["predictions"]) == ROWS
    assert len((tmp_path / "p.csv").read_text().splitlines()) == ROWS + 1
    assert {row["method"] for row in document("methods")} >= {"vogn", "laplace", "ridge"}


def test_the_seed_decides_everything(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    def metrics(folder: str, seed: str) -> dict[str, float]:
        words = ("--out", tmp_path / folder, "--seed", seed, "--json", *FAST)
        return json.loads(call("fit", table(), "--target", "price", *words).out)["metrics"]

    first = metrics("a", "1")
    assert metrics("b", "1") == first
    assert metrics("c", "2") != first


def test_what_is_odd_about_the_columns_is_said(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    file = table(x={3: np.nan}, k=1)
    words = ("--target", "price", "--missing", "impute", "--out", tmp_path / "run", *FAST)
    said = call("fit", file, *words)
    assert said.code == 0
    assert "Column 'k' is always 1: left out." in said.out
    assert "Column 'x': missing values are filled with the median" in said.out


def test_predictions_come_where_the_target_is_odd_or_columns_are_more(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    run = tmp_path / "run"
    call("fit", table(drop=("price",)), "--target", "kind", "--out", run, *FAST)
    said = call("predict", run, table("new.csv", drop=("price",), kind={0: "sideways"}, more=1))
    assert said.code == 0
    assert len(said.out.splitlines()) == ROWS + 1
    assert "Not used: 'more'." in said.err
    assert "No scores: Column 'kind'" in said.err


# Faults of the data


def test_a_mistyped_target_is_recognised(
    table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    assert "Did you mean 'price'?" in only_line(call("fit", table(), "--target", "prize"))
    assert "its columns are x, z" in only_line(call("fit", table()))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"x": {3: np.nan}}, ["Column 'x'", "row 3 (line 5)", "--missing impute"]),
        ({"z": {5: np.inf}}, ["Column 'z'", "row 5 (line 7)", "--features"]),
        ({"price": {5: np.nan}}, ["Column 'price'", "row 5 (line 7)"]),
        ({"price": 7.0}, ["'price'", "is always 7"]),
        ({"x": 1, "z": 1, "colour": "red"}, ["no feature to learn from"]),
        ({"price": "up"}, ["one class only, 'up'"]),
        ({"price": [f"c{i}" for i in range(ROWS)]}, ["40 different values", "--task regression"]),
    ],
)
def test_faults_of_cells_are_named(
    cells: dict[str, Any],
    words: list[str],
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
) -> None:
    file, out = table(**cells), tmp_path / "run"
    line = only_line(call("fit", file, "--target", "price", "--out", out))
    for word in words:
        assert word in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("x,price\n", "no rows"),
        ("x,price\n1,2\n", "has 1 row"),
        ("x,price\n1,2\n2,3\n", "--test-fraction 0 to learn from all"),
    ],
)
def test_too_few_rows(content: str, words: str, tmp_path: Path, call: Callable[..., Said]) -> None:
    file = tmp_path / "t.csv"
    file.write_text(content)
    assert words in only_line(call("fit", file, "--target", "price", "--out", tmp_path / "run"))


def test_two_rows_are_enough_where_none_is_held_out(
    tmp_path: Path, call: Callable[..., Said]
) -> None:
    file, run = tmp_path / "t.csv", tmp_path / "run"
    file.write_text("x,price\n1,2\n2,3\n")
    words = ("--target", "price", "--out", run, "--test-fraction", "0", *FAST, "--json")
    said = call("fit", file, *words)
    assert said.code == 0
    assert json.loads(said.out)["metrics"] == {}
    assert call("predict", run, file).code == 0


def test_new_rows_that_do_not_fit_the_model(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    run, file = tmp_path / "run", table()
    call("fit", file, "--target", "price", "--out", run, *FAST)
    pink = table("pink.csv", colour={2: "pink"})
    line = only_line(call("predict", run, pink))
    assert "'pink' in row 2 (line 4)" in line
    assert "--unseen ignore" in line
    assert call("predict", run, pink, "--unseen", "ignore").code == 0
    assert "lacks 'z'" in only_line(call("predict", run, table("n.csv", drop=("z", "kind"))))
    # `predict` itself cannot fill in what `fit` did not learn to.
    assert "fit's --missing" in only_line(call("predict", run, table("m.csv", x={3: np.nan})))
    assert "There is no file" in only_line(call("predict", run, tmp_path / "t.cvs.csv"))


# Faults of the call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--epochs -1", "--epochs: takes a whole number of at least 1, got '-1'"),
        ("--epochs 1.5", "--epochs: takes a whole number"),
        ("--batch-size 0", "--batch-size: takes a whole number of at least 1"),
        ("--steps x", "--steps: takes a whole number"),
        ("--patience 0", "--patience: takes a whole number"),
        ("--temperature 0", "--temperature: takes a number above 0"),
        ("--temperature nan", "--temperature: takes a number above 0"),
        ("--prior-precision -1", "--prior-precision: takes a number of 0 or more"),
        ("--learning-rate inf", "--learning-rate: takes a number above 0"),
        ("--hidden a,b", "--hidden: takes whole numbers"),
        ("--hidden 50,0", "--hidden: takes whole numbers"),
        ("--test-fraction 1.5", "--test-fraction: takes a number from 0"),
        ("--test-fraction 0.99", "leaves 1 of them to learn from"),
        ("--seed -1", "--seed: takes a whole number of at least 0"),
        ("--seed 99999999999999999999", "and at most 4294967295"),
        ("--features ,", "--features: takes names"),
        ("--features x,prize", "no column 'prize'"),
        ("--features x,price", "it cannot be a feature too"),
        ("--method vagn", "Did you mean 'vogn'?"),
        ("--task classify", "invalid choice: 'classify'"),
        ("--taget x", "Did you mean '--target'?"),
        ("again.csv", "not understood: again.csv."),
    ],
)
def test_absurd_options(
    words: str,
    expected: str,
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
) -> None:
    out = tmp_path / "run"
    said = call("fit", table(), "--target", "price", "--out", out, *shlex.split(words))
    assert expected in only_line(said)
    assert said.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--level 2", "--level: takes a number strictly between 0 and 1"),
        ("--draws 0", "--draws: takes a whole number"),
        ("--how mean --draws 5", "--draws does not go with --how mean"),
    ],
)
def test_absurd_options_of_predict(words: str, expected: str, call: Callable[..., Said]) -> None:
    assert expected in only_line(call("predict", "run", "new.csv", *words.split()))


def test_options_that_do_not_go_with_classes(
    table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    words = ("fit", table(drop=("price",)), "--target", "kind")
    assert "for regression" in only_line(call(*words, "--heteroscedastic"))
    assert "ridge is for regression" in only_line(call(*words, "--method", "ridge"))


def test_a_training_that_diverges_ends_with_one(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    words = ("fit", table(), "--target", "price", "--out", tmp_path / "run", "--epochs", "3")
    line = only_line(call(*words, "--learning-rate", "1e30"), code=1)
    assert "A smaller --learning-rate" in line
    # What has no checkpoint is no run: the folder can be used again.
    assert call(*words).code == 0


def test_singular_matrices_are_a_failed_training(
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(fit_command.Recipe, "fit", fail)
    words = ("fit", table(), "--target", "price", "--out", tmp_path / "run")
    assert "not positive definite (BAYESRULE_DEBUG=1" in only_line(call(*words), code=1)


# Bugs and faults told apart


@pytest.mark.parametrize("bug", [TypeError("bug"), KeyError("bug"), RuntimeError("bug")])
def test_a_bug_keeps_its_traceback(
    bug: Exception,
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise bug

    monkeypatch.setattr(fit_command.Recipe, "fit", fail)
    with pytest.raises(type(bug)) as caught:
        call("fit", table(), "--target", "price", "--out", tmp_path / "run")
    assert caught.value.__notes__ == [
        "This is a fault in bayesrule itself; please report these lines."
    ]


def test_debugging_shows_the_traceback_of_a_fault(
    table: Callable[..., Path], call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESRULE_DEBUG", "1")
    said = call("fit", table(), "--target", "prize")
    assert said.code == 2
    assert said.err.startswith("Traceback")
    assert "Did you mean 'price'?" in said.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [
        (TrainingError("The loss\nis nan."), 1, "The loss is nan."),
        (MemoryError(), 1, "not enough memory"),
        (RuntimeError("[enforce fail] can't allocate memory: 8 bytes"), 1, "not enough memory"),
        (PermissionError(errno.EACCES, "Permission denied", "a.csv"), 2, "'a.csv': Permission"),
        (ImportError("pip install 'bayesrule[front]'"), 2, "bayesrule[front]"),
    ],
)
def test_known_faults_are_one_line(
    problem: Exception,
    code: int,
    words: str,
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(fit_command.options, "table", fail)
    assert words in only_line(call("fit"), code=code)


def test_an_interruption_says_how_to_go_on(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_command.options, "table", interrupt)
    assert "goes on from the last checkpoint" in only_line(call("fit"), code=130)
    assert "No report was written" in only_line(call("compare"), code=130)


# Folders and files


def test_a_folder_with_another_run_is_refused_and_kept(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    run, words = tmp_path / "run", ["fit", table(), "--target", "price", *FAST]
    assert call(*words, "--out", run).code == 0
    before = contents(run)
    for more, expected in (
        (["--method", "ivon"], "a run with method vogn, this one has method ivon"),
        (["--epochs", "2"], "epochs 1, this one has epochs 2"),
        (["--seed", "1"], "seed 0, this one has seed 1"),
        (["--features", "x"], "other data, or on another target or other columns"),
    ):
        line = only_line(call(*words, "--out", run, *more))
        assert expected in line
        assert "--start-over" in line
        assert contents(run) == before
    changed = table("u.csv", price={3: 0.5})
    assert "other data" in only_line(call("fit", changed, *words[2:], "--out", run))
    assert contents(run) == before
    assert call(*words, "--out", run, "--method", "ivon", "--start-over").code == 0
    assert json.loads((run / "model.json").read_text())["recipe"]["method"] == "ivon"
    assert call("predict", run, table()).code == 0


def test_the_same_call_again_changes_nothing(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    run = tmp_path / "run"
    words = ("fit", table(), "--target", "price", "--out", run, *FAST)
    call(*words)
    first = call("predict", run, table()).out
    said = call(*words)
    assert said.code == 0
    assert "holds 1 of them already" in said.out
    assert call("predict", run, table()).out == first


def test_a_file_where_the_folder_should_be(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    file = table()
    before = file.read_bytes()
    for command in ("fit", "compare"):
        line = only_line(call(command, file, "--target", "price", "--out", file))
        assert "is a file; --out takes a folder" in line
        line = only_line(call(command, file, "--target", "price", "--out", file / "run"))
        assert "Cannot write into the folder" in line
    assert file.read_bytes() == before


def test_a_read_only_folder_is_refused_before_training(
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deny(**_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.TemporaryFile", deny)
    for command in ("fit", "compare"):
        said = call(command, table(), "--target", "price", "--out", tmp_path / "run")
        assert "Permission denied" in only_line(said)
        assert said.out == ""


def test_a_full_disk_loses_nothing(
    tmp_path: Path,
    table: Callable[..., Path],
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run, words = tmp_path / "run", ["fit", table(), "--target", "price", *FAST]
    call(*words, "--out", run)
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        for more in ([], ["--start-over", "--method", "ivon"]):
            said = call(*words, "--out", run, *more)
            assert "No space left on device" in only_line(said)
            assert contents(run) == before
        said = call("predict", run, table(), "--out", tmp_path / "p.csv")
        assert "No space left on device" in said.err
        assert said.code == 2
    assert not (tmp_path / "p.csv").exists()


# In processes of their own


def start(*words: str | Path, prelude: str = "") -> subprocess.Popen[str]:
    code = f"{prelude}\nimport sys\nfrom bayesrule.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


# A checkpoint after every epoch, so that a test need not wait for the next one.
OFTEN = "import bayesrule.train as t; t.fit.__kwdefaults__['checkpoint_seconds'] = 0.0"


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on_bit_for_bit(
    how: signal.Signals, tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    from safetensors.torch import load_file

    words = ("fit", table(), "--target", "price", "--epochs", "100", "--hidden", "3")
    process = start(*words, "--out", tmp_path / "killed", prelude=OFTEN)
    wait_for(tmp_path / "killed" / "checkpoint.safetensors", process)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert err.startswith("bayesrule: Interrupted. ")
        assert len(err.splitlines()) == 1
    else:
        assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "final.safetensors").exists()
    line = only_line(call("predict", tmp_path / "killed", table()))
    assert "holds no finished run" in line
    said = call(*words, "--out", tmp_path / "killed")
    assert "training goes on from there" in said.out
    assert call(*words, "--out", tmp_path / "whole").code == 0
    ends = [load_file(tmp_path / name / "final.safetensors") for name in ("killed", "whole")]
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name


def test_a_reader_that_leaves_early_is_no_fault(
    tmp_path: Path, table: Callable[..., Path], call: Callable[..., Said]
) -> None:
    run = tmp_path / "run"
    call("fit", table(), "--target", "price", "--out", run, *FAST)
    # More than a pipe holds, so that writing meets the closed end.
    new = tmp_path / "new.csv"
    pandas.concat([frame().drop(columns=["price", "kind"])] * 200).to_csv(new, index=False)
    process = start("predict", run, new)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mean,std")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_help_loads_nothing_heavy_and_plain_terminals_do() -> None:
    code = (
        "import sys\nfrom bayesrule.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pandas', 'sklearn', 'joblib', 'pyarrow', 'dask'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy)); main(['methods'])"
    )
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "heavy: []" in done.stdout
    assert "bayesrule fit house.csv" in done.stdout
    assert time.perf_counter() - begun < 30  # torch's own import, on a busy machine


# Help


def helps() -> dict[str, str]:
    """The help of every command, by its words."""
    found = {"": cli.parser().format_help()}
    for words in (["methods"], ["fit"], ["predict"], ["compare"], ["bench"], ["bench", "speed"]):
        parser: Any = cli.parser()
        for word in words:
            parser = parser._subparsers._group_actions[0].choices[word]
        found[" ".join(words)] = parser.format_help()
    return found


def examples() -> list[str]:
    lines = [line.strip() for text in helps().values() for line in text.splitlines()]
    # Two spaces part an example from what is said about it.
    found = [line.partition("  ")[0] for line in lines if line.startswith("bayesrule ")]
    return sorted(set(found))


def test_every_command_teaches_by_example() -> None:
    for words, text in helps().items():
        assert "examples:" in text, words
        assert all(len(line) <= 102 for line in text.splitlines()), words
    assert len(examples()) >= 15


@pytest.mark.parametrize("line", examples())
def test_examples_can_be_typed(line: str) -> None:
    args = cli.parser().parse_args(shlex.split(line)[1:])
    assert callable(args.run)
