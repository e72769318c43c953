"""Values of options: each is taken, or refused in one line; none is ignored without a word."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from calling import FAST, call, frame, only_line, table
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesrule.app import cli
from bayesrule.app.commands import compare, fit, methods, predict
from bayesrule.app.saved import read_model
from bayesrule.methods import METHODS, record

pandas = pytest.importorskip("pandas")

COMMANDS: dict[str, Any] = {
    "fit": fit, "compare": compare, "predict": predict, "methods": methods
}  # fmt: skip


def flags(command: str) -> list[str]:
    grammar: Any = cli.parser()
    actions = grammar._subparsers._group_actions[0].choices[command]._actions
    return [action.option_strings[-1] for action in actions if action.option_strings]


CHOICES = [(command, flag) for command in COMMANDS for flag in flags(command)]
EDGES = (
    *("", " ", "0", "-0", "1", "-1", "1e39", "1e400", "1e-300", "inf", "-inf", "nan", "0x10"),
    *("9" * 400, "9" * 5000, "1_0", "٣", "1,2", ",", "none", "NONE", "1.5", "true", "\0", "\n"),
    *("--", "-h", "--json", "=", "%s", "%(prog)s", "{x}", "~", "/", ".", "a\u2028b", "é"),
)
VALUES = st.one_of(
    st.sampled_from(EDGES),
    st.text(max_size=20),
    st.floats().map(str),
    st.integers().map(str),
    st.lists(st.integers(-3, 10**7), max_size=4).map(lambda sizes: ",".join(map(str, sizes))),
    # Names of files need not be text.
    st.binary(max_size=8).filter(lambda raw: 0 not in raw).map(os.fsdecode),
)


@settings(max_examples=2000)
@given(choice=st.sampled_from(CHOICES), value=VALUES, joined=st.booleans())
def test_any_value_is_taken_or_refused_in_one_line(
    choice: tuple[str, str], value: str, joined: bool
) -> None:
    command, flag = choice
    words = [f"{flag}={value}"] if joined else [flag, value]
    places = ["run", "new.csv"] if command == "predict" else []
    with pytest.MonkeyPatch.context() as patch:
        # Only the grammar is tried: a command that takes its arguments is done.
        patch.setattr(COMMANDS[command], "run", lambda _: 0)
        said = call(command, *places, *words)
    if said.code:
        only_line(said, code=2)
    else:
        assert said.err == ""


@pytest.mark.parametrize(
    "words",
    ["--prior-precision 1e39", "--prior-precision 1e-39", "--learning-rate 1e300",
     "--temperature 1e-300", "--temperature 1e31", "--steps 1e400", f"--steps {'9' * 400}",
     "--epochs 99999999999", "--batch-size 99999999999", "--hidden 99999999999", "--out ''"],
)  # fmt: skip
def test_numbers_beyond_all_use_are_refused(words: str, tmp_path: Path) -> None:
    option = shlex.split(words)[0]
    for command in ("fit", "compare"):
        said = call(command, table(tmp_path), "--target", "price", *shlex.split(words))
        assert f"argument {option}: takes " in only_line(said)


@pytest.mark.parametrize("method", ["adam", "noisy_adam", "vogn", "tagi"])
def test_the_last_numbers_that_are_taken_give_no_traceback(method: str, tmp_path: Path) -> None:
    options = (
        "--temperature 1e30 --learning-rate 1e30" if method != "tagi" else "--temperature 1e30"
    )
    words = ("--target", "price", "--method", method, "--out", tmp_path / "run", "--epochs", "1")
    said = call("fit", table(tmp_path), *words, *options.split(), *(
        () if method == "tagi" else ("--prior-precision", "1e-30")
    ))  # fmt: skip
    assert said.code in (0, 1)
    lines = said.err.splitlines()
    assert len(lines) == 1 or said.code == 0
    # Training that ended well may have had to begin again, and says so.
    assert all(line.startswith("bayesrule: ") for line in lines)


@pytest.mark.parametrize("command", ["fit", "compare", "predict"])
def test_two_dashes_are_no_value(command: str) -> None:
    flag = {"predict": "--how"}.get(command, "--target")
    assert f"argument {flag}: takes a value, got '--'" in only_line(call(command, f"{flag}=--"))


# Options without effect


def ignored() -> list[tuple[str, str]]:
    names = ("prior_precision", "temperature", "learning_rate")
    return [(m, n) for m in METHODS for n in names if n in record(m).without_effect]


def test_some_options_have_no_effect() -> None:
    assert ("tagi", "prior_precision") in ignored()


@pytest.mark.parametrize(("method", "option"), ignored())
def test_an_option_without_effect_is_refused(method: str, option: str, tmp_path: Path) -> None:
    flag, out = "--" + option.replace("_", "-"), tmp_path / "run"
    words = ("--target", "price", "--method", method, "--out", out, flag, "2")
    line = only_line(call("fit", table(tmp_path), *words))
    assert f"{flag} would have no effect: {method} has no use for it." in line
    assert not out.exists()


def test_layers_of_a_linear_model_are_refused(tmp_path: Path) -> None:
    words = ["fit", table(tmp_path), "--target", "price", "--method", "ridge", *FAST]
    line = only_line(call(*words, "--out", tmp_path / "a", "--hidden", "64"))
    assert "--hidden would have no effect: ridge has no use for it." in line
    assert call(*words, "--out", tmp_path / "b", "--hidden", "none").code == 0


def test_a_comparison_notes_options_without_effect(tmp_path: Path) -> None:
    words = ("--methods", "tagi,map", "--epochs", "1", "--splits", "1", "--jobs", "1", "--json")
    said = call(
        *("compare", table(tmp_path), "--target", "price", "--out", tmp_path),
        *("--prior-precision", "2", *words),
    )
    note = "prior_precision has no effect on tagi, which trained without it."
    assert note in json.loads(said.out)["notes"]


# Columns that are left out


def test_columns_are_left_out(tmp_path: Path) -> None:
    file, run = tmp_path / "t.csv", tmp_path / "run"
    names = [f"name {i}" for i in range(len(frame()))]
    frame().assign(id=range(len(names)), name=names).to_csv(file, index=False)
    words = ("fit", file, "--target", "price", "--out", run, *FAST)
    assert call(*words, "--drop", "id,name,kind").code == 0
    assert [one.name for one in read_model(run).encoder.columns] == ["x", "z", "colour"]
    assert call("predict", run, file, "--id", "name").code == 0
    said = call(*words, "--start-over", "--features", "x,z", "--drop", "z")
    assert said.code == 0
    assert [one.name for one in read_model(run).encoder.columns] == ["x"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--drop prize", "no column 'prize'. Did you mean 'price'?"),
        ("--drop price", "--drop names 'price', which is the target."),
        ("--drop ,", "--drop: takes names"),
        ("--drop x,z,colour", "no feature to learn from"),
        ("--drop x --features x,price", "it cannot be a feature too"),
    ],
)
def test_columns_that_cannot_be_left_out(words: str, expected: str, tmp_path: Path) -> None:
    for command in ("fit", "compare"):
        said = call(command, table(tmp_path), "--target", "price", *words.split())
        assert expected in only_line(said)


# Homes


def test_a_home_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert "There is no file" in only_line(call("fit", "~/x.csv", "--target", "y"))
    words = ("fit", table(tmp_path), "--target", "price", "--out", tmp_path / "run", *FAST)
    assert call(*words).code == 0
