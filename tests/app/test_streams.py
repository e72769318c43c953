"""Where the command line prints: pipes that close, few letters, json, and Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from calling import FAST, call, frame, only_line, table

import bayesrule
from bayesrule.app import cli
from bayesrule.app.commands import compare as compare_command
from bayesrule.app.commands import fit as fit_command
from bayesrule.app.commands import options
from bayesrule.app.commands import predict as predict_command
from bayesrule.app.commands.output import Lasting

pandas = pytest.importorskip("pandas")

SOURCE = str(Path(bayesrule.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
COMMAND = f"{sys.executable} -m bayesrule"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What a shell makes of a line; the exit code is that of the first program of a pipe."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


class LeavingReader(io.StringIO):
    """A pipe whose reader leaves after the first line."""

    def write(self, text: str) -> int:
        if "\n" in self.getvalue():
            raise BrokenPipeError
        return super().write(text)


def call_and_leave(*words: str | Path) -> tuple[int, str]:
    out = LeavingReader()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        return cli.main([str(word) for word in words]), out.getvalue()


# Pipes that close


def test_fit_trains_though_its_reader_leaves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("fit", table(tmp_path), "--target", "price", "--out", run, *FAST)
    code, out = call_and_leave(*words)
    assert (code, out.count("\n")) == (0, 1)
    assert (run / "final.safetensors").is_file()
    assert (run / "run.json").is_file()


def test_compare_reports_though_its_reader_leaves(tmp_path: Path) -> None:
    file = table(tmp_path, drop=("kind", "colour"))
    words = ("--epochs", "1", "--splits", "1", "--jobs", "1", "--methods", "map")
    code, _ = call_and_leave("compare", file, "--target", "price", "--out", tmp_path, *words)
    assert code == 0
    assert (tmp_path / "report.html").is_file()


def test_head_of_a_training(tmp_path: Path) -> None:
    table(tmp_path)
    # The reader is gone before the first line: every line meets the closed end.
    line = f"{COMMAND} fit t.csv --target price --out run --epochs 1 | true"
    done = shell(line, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "run" / "final.safetensors").is_file()


def test_streams_that_are_closed_from_the_beginning(tmp_path: Path) -> None:
    table(tmp_path)
    done = shell(f"{COMMAND} fit t.csv --target price --out run --epochs 1 >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "run" / "final.safetensors").is_file()
    done = shell(f"{COMMAND} predict run t.csv >&-", tmp_path)
    assert done.returncode == 2
    last = done.stderr.decode().splitlines()[-1]
    assert last == "bayesrule: Standard output is closed. Name a file with --out."


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_cannot_be_written_is_said_when_the_work_is_done(tmp_path: Path) -> None:
    table(tmp_path)
    done = shell(f"{COMMAND} fit t.csv --target price --out run --epochs 1 > /dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "bayesrule: Standard output: No space left on device."
    ]
    assert (tmp_path / "run" / "final.safetensors").is_file()


# Letters


def test_labels_keep_their_letters_where_a_terminal_has_few(tmp_path: Path) -> None:
    content = frame().drop(columns="price").replace({"kind": {"up": "é", "down": "ö"}})
    content.to_csv(tmp_path / "k.csv", index=False)
    said = call("fit", tmp_path / "k.csv", "--target", "kind", "--out", tmp_path / "run", *FAST)
    assert said.code == 0
    done = shell(f"{COMMAND} predict run k.csv", tmp_path, PYTHONIOENCODING="ascii")
    head, *rows = done.stdout.decode("utf-8").splitlines()
    assert head.startswith("predicted_kind,p(é),p(ö),")
    assert {row[0] for row in rows} <= {"é", "ö"}


def test_letters_that_a_stream_lacks_stay_apart() -> None:
    raw = io.BytesIO()
    stream = Lasting(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("é ö")
    stream.flush()
    assert raw.getvalue() == rb"\xe9 \xf6"
    stream.write_data("é")
    assert raw.getvalue().endswith("é".encode())


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    file, run = table(folder, drop=("kind", "colour")), tmp_path / "run"
    said = call("fit", file, "--target", "price", "--out", folder / "run", *FAST)
    assert "is not text in UTF-8. Use another name." in only_line(said)
    assert call("fit", file, "--target", "price", "--out", run, *FAST).code == 0
    assert call("predict", run, file, "--out", folder / "p.csv").code == 0
    assert (folder / "p.csv").is_file()
    words = ("--epochs", "1", "--splits", "1", "--jobs", "1", "--methods", "map")
    assert call("compare", file, "--target", "price", "--out", folder, *words).code == 0
    assert r"\udcff" in (folder / "report.html").read_text()
    # Real streams, unlike those of the calls above, cannot encode such names.
    target = os.fsencode(file)
    done = subprocess.run(
        [sys.executable, "-m", "bayesrule", "fit", target, "--target", "price", "--out", "new",
         "--epochs", "1"],
        env=ENVIRONMENT, cwd=tmp_path, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\udcff" in done.stdout


# Json


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["fit", "none.csv", "--json"], 2, "There is no file 'none.csv'."),
        (["fit", "--epochs", "x", "--json"], 2, "--epochs: takes a whole number"),
        (["fit", "--json", "--taget", "x"], 2, "Did you mean '--target'?"),
        (["predict", "none", "new.csv", "--json"], 2, "not the folder of a trained model"),
        (["compare", "none.csv", "--json"], 2, "There is no file"),
        (["methods", "vagn", "--json"], 2, "Did you mean 'vogn'?"),
    ],
)
def test_an_error_is_a_document_too(words: list[str], code: int, expected: str) -> None:
    said = call(*words)
    document = json.loads(said.out)
    assert document == {"error": only_line(said, code)[len("bayesrule: ") :], "exit_code": code}
    assert expected in document["error"]


def test_scores_stay_in_the_document_if_the_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr(compare_command, "write_report", full)
    file = table(tmp_path, drop=("kind", "colour"))
    words = ("--epochs", "1", "--splits", "1", "--jobs", "1", "--methods", "map", "--json")
    said = call("compare", file, "--target", "price", "--out", tmp_path, *words)
    document = json.loads(said.out)
    assert document["error"] == "'report.html': No space left on device."
    assert document["methods"][0]["metrics"]["rmse"]["mean"] > 0


@pytest.mark.parametrize(
    ("problem", "code"), [(KeyboardInterrupt(), 130), (TypeError("bug"), None)]
)
def test_interruptions_and_bugs_are_documents_too(
    problem: BaseException, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(options, "open_table", fail)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        if code is None:
            with pytest.raises(TypeError, match="bug"):
                cli.main(["fit", "--json"])
        else:
            assert cli.main(["fit", "--json"]) == code
    assert json.loads(out.getvalue())["exit_code"] == (code or 1)


# Reasons


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fit", "big.csv"], "read 'big.csv'. Fewer rows or columns"),
        (["compare", "big.csv"], "read 'big.csv'. Fewer rows or columns"),
    ],
)
def test_a_table_that_is_too_large_is_named(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(options, "open_table", fail)
    line = only_line(call(*words), code=1)
    assert expected in line
    assert "--hidden" not in line


def test_memory_for_predictions_names_options_of_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise MemoryError

    file, run = table(tmp_path), tmp_path / "run"
    call("fit", file, "--target", "price", "--out", run, *FAST)
    monkeypatch.setattr(predict_command.SavedModel, "predict", fail)
    line = only_line(call("predict", run, file), code=1)
    assert "Fewer --draws" in line
    assert "--hidden" not in line


# Ctrl-C


@pytest.mark.parametrize("epochs", [0, 2])
def test_an_interrupted_training_says_what_was_kept(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_command.Recipe.fit

    def stop(recipe: Any, *given: Any, out: Path, **more: Any) -> NoReturn:
        if epochs:
            short = fit_command.replace(recipe, epochs=epochs)
            fit(short, *given, out=out, **more)
            (out / "final.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_command.Recipe, "fit", stop)
    run = tmp_path / "run"
    said = call("fit", table(tmp_path), "--target", "price", "--out", run, "--epochs", "9")
    kept = (
        f"{run} holds 2 of 9 epochs; the same command continues from there."
        if epochs
        else "No checkpoint was written yet; the same command begins anew."
    )
    assert only_line(said, code=130) == f"bayesrule: Interrupted. {kept}"


def test_ctrl_c_while_the_command_line_is_imported(tmp_path: Path) -> None:
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    (tmp_path / "torch.py").write_text(interrupt)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}

    def start(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr.splitlines()

    (tmp_path / "bayesrule").write_text("from bayesrule.app.cli import main\nmain()\n")
    line = ["bayesrule: Interrupted."]
    assert start("-m", "bayesrule", "methods") == (-signal.SIGINT, line)
    assert start(str(tmp_path / "bayesrule"), "methods") == (-signal.SIGINT, line)
    # Whoever imports the library in a program of their own sees what happened.
    code, lines = start("-c", "import bayesrule")
    assert (code, lines[0]) == (-signal.SIGINT, "Traceback (most recent call last):")
