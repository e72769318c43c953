"""The command line itself: help that teaches, faults in one line, bugs with a traceback."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from calling import FAST, call, only_line, table

from bayesrule.app import cli
from bayesrule.app.commands import fit as fit_command
from bayesrule.app.commands import options
from bayesrule.training.train import TrainingError

pandas = pytest.importorskip("pandas")

# Help


def helps() -> dict[str, str]:
    """The help of every command, by its words."""
    found = {"": cli.parser().format_help()}
    for words in (["methods"], ["fit"], ["predict"], ["compare"]):
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


# Faults of the call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--epochs -1", "--epochs: takes a whole number of at least 1 and at most 1000000000, got"),
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
        ("--method tagi --learning-rate 1", "tagi has no option --learning-rate; it takes"),
        ("again.csv", "not understood: again.csv."),
    ],
)
def test_absurd_options(words: str, expected: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = call("fit", table(tmp_path), "--target", "price", "--out", out, *shlex.split(words))
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
def test_absurd_options_of_predict(words: str, expected: str) -> None:
    assert expected in only_line(call("predict", "run", "new.csv", *words.split()))


def test_options_that_do_not_go_with_classes(tmp_path: Path) -> None:
    words = ("fit", table(tmp_path, drop=("price",)), "--target", "kind")
    assert "for regression" in only_line(call(*words, "--heteroscedastic"))
    assert "ridge is for regression" in only_line(call(*words, "--method", "ridge"))


def test_a_training_that_diverges_ends_with_one(tmp_path: Path) -> None:
    words = (
        "fit",
        table(tmp_path),
        "--target",
        "price",
        "--out",
        tmp_path / "run",
        "--epochs",
        "3",
    )
    line = only_line(call(*words, "--method", "map", "--learning-rate", "1e30"), code=1)
    assert "A smaller --learning-rate" in line
    # What has no checkpoint is no run: the folder can be used again.
    assert call(*words).code == 0


@pytest.mark.parametrize("kind", [torch.linalg.LinAlgError, FloatingPointError])
def test_numbers_that_go_wrong_are_a_failed_training(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise kind("not positive definite")

    monkeypatch.setattr(fit_command.Recipe, "fit", fail)
    words = ("fit", table(tmp_path), "--target", "price", "--out", tmp_path / "run", *FAST)
    assert "not positive definite (BAYESRULE_DEBUG=1" in only_line(call(*words), code=1)


# Bugs and faults told apart


@pytest.mark.parametrize("bug", [TypeError("bug"), KeyError("bug"), RuntimeError("bug")])
def test_a_bug_keeps_its_traceback(
    bug: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise bug

    monkeypatch.setattr(fit_command.Recipe, "fit", fail)
    with pytest.raises(type(bug)) as caught:
        call("fit", table(tmp_path), "--target", "price", "--out", tmp_path / "run", *FAST)
    assert caught.value.__notes__ == ["This is a bug in bayesrule; please report these lines."]


def test_debugging_shows_the_traceback_of_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BAYESRULE_DEBUG", "1")
    said = call("fit", table(tmp_path), "--target", "prize")
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
    problem: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(options, "open_table", fail)
    assert words in only_line(call("fit"), code=code)


def test_an_interruption_says_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "open_table", interrupt)
    assert "Nothing was changed" in only_line(call("fit"), code=130)
    assert "No report was written" in only_line(call("compare"), code=130)
