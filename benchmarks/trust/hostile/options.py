"""Random options of the command line: each call succeeds, fails or is refused in one line."""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from bayesrule.app import cli
from bayesrule.app.commands import compare, fit, methods, predict
from bayesrule.methods import METHODS
from benchmarks.trust.hostile.calls import call
from benchmarks.trust.hostile.judge import require
from benchmarks.trust.hostile.reading import Findings

COMMANDS: dict[str, Any] = {
    "fit": fit, "predict": predict, "compare": compare, "methods": methods
}  # fmt: skip
_EDGES = (
    *("", " ", "0", "-0", "1", "-1", "1e39", "1e400", "1e-300", "inf", "-inf", "nan", "0x10"),
    *("9" * 400, "9" * 5000, "1_0", "٣", "1,2", ",", ",,", "none", "NONE", "true", "\0", "\n"),
    *("--", "-h", "--json", "--help", "=", "%s", "%(prog)s", "{x}", "~", "/", ".", "a\u2028b", "é"),
    *("nosuch.csv", "~nosuchuser/x.csv", "iris", "\udce9.csv", "x" * 300, "1e30", "1e-30"),
    *("\t", "1.5", "\x1b[31m"),
)  # fmt: skip
_LIKELY = {
    "--target": ("x", "kind", "price", "no such"),
    "--features": ("x", "x,z", "x,x", "price"),
    "--drop": ("x", "x,z,colour,kind", "kind", "price"),
    "--categories": ("x", "colour", "kind"),
    "--method": (*METHODS, "gp", "VOGN", "noisy-kfac"),
    "--methods": ("map", "ridge,map", "vogn,vogn", "all"),
    "--hidden": ("none", "1", "3,3", "0"),
    "--test-fraction": ("0", "0.5", "0.999", "1e-9"),
    "--patience": ("1", "1000000000"),
    "--splits": ("1", "2"),
    **dict.fromkeys(("--temperature", "--prior-precision", "--learning-rate"),
                    ("1e-30", "1e-3", "1", "1e3", "1e30", "0")),
    "--level": ("1e-300", "0.5", "0.9999999999999999", "1"),
    "--id": ("x", "kind", "no such"),
    "--how": ("draws", "mean", "linearised", "moments"),
    "--unseen": ("error", "ignore"),
    "--missing": ("error", "impute"),
    "--task": ("regression", "classification"),
    "--noise": ("homoscedastic", "heteroscedastic"),
    "--seed": ("0", "4294967295", "4294967296"),
}  # fmt: skip


def actions(command: str) -> dict[str, bool]:
    """The options of a command, and whether each takes a value."""
    grammar: Any = cli.parser()
    every = grammar._subparsers._group_actions[0].choices[command]._actions
    return {one.option_strings[-1]: one.nargs != 0 for one in every if one.option_strings}


def _value(flag: str, chance: random.Random, likely: float) -> str:
    if flag in _LIKELY and chance.random() < likely:
        return chance.choice(_LIKELY[flag])
    kind = chance.randrange(5)
    if kind == 0:
        return repr(chance.choice((1.0, -1.0)) * 10.0 ** chance.uniform(-320, 308))
    if kind == 1:
        return str(chance.randint(-(10**6), 10**12))
    if kind == 2:
        raw = bytes(chance.randrange(1, 256) for _ in range(chance.randint(0, 8)))
        return os.fsdecode(raw)  # names of files need not be text
    return chance.choice(_EDGES)


def _options(
    flags: dict[str, bool], chance: random.Random, likely: float, most: int = 4
) -> list[str]:
    words = list[str]()
    for flag in chance.choices(list(flags), k=chance.randint(1, most)):
        if not flags[flag] and chance.random() < 0.95:
            words.append(flag)
            continue
        value = _value(flag, chance, likely)
        words += [f"{flag}={value}"] if chance.random() < 0.6 else [flag, value]
    return words


def grammar(num: int, seed: int, findings: Findings) -> None:
    """Tries options without running the command."""
    flags = {command: actions(command) for command in COMMANDS}
    for number in range(num):
        chance = random.Random(f"{seed} grammar {number}")
        command = chance.choice(list(COMMANDS))
        words = [command, *_options(flags[command], chance, likely=0.2)]
        if command != "methods" and chance.random() < 0.8:
            places = {"predict": ["run", "new.csv"]}.get(command, ["data.csv"])
            words[1:1] = [_value("", chance, 0.0) if chance.random() < 0.1 else p for p in places]
        with mock.patch.object(COMMANDS[command], "run", return_value=0):
            findings.case("options alone", number, partial(_outcome, words))


def _outcome(words: list[str]) -> str:
    said = call(words)
    require(said.code != 1, f"nothing ran, but the code is 1: {said.err}")
    return said.outcome


def _done(words: list[str]) -> str:
    return call(words).outcome


def work(num: int, seed: int, findings: Findings, place: Path) -> None:
    """Runs commands with random options, on a small table and with settings for short runs."""
    data, run = _table(place / "data.csv"), place / "trained"
    ready = call(["fit", str(data), "--target", "price", "--epochs", "2", "--out", str(run)])
    require(ready.code == 0, f"a plain call is not done: {ready.err}")
    # Output paths and long runs are not drawn at random.
    bounded = {"--out": str(place / "out"), "--epochs": "1", "--batch-size": "16", "--hidden": "3"}
    last = {
        "fit": bounded,
        "compare": {**bounded, "--splits": "1", "--jobs": "1", "--methods": "map"},
        "predict": {"--out": str(place / "new.csv")},
    }
    dice = {
        command: {k: v for k, v in actions(command).items() if k not in (*own, "--draws")}
        for command, own in last.items()
    }
    for number in range(num):
        chance = random.Random(f"{seed} work {number}")
        command = chance.choices(list(last), (10, 1, 10))[0]
        words = _options(dice[command], chance, likely=0.85)
        if command == "predict" and chance.random() < 0.3:
            words.append("--draws=2")
        places = [str(run), str(data)] if command == "predict" else [str(data)]
        if chance.random() < 0.8 and command != "predict":
            words = ["--target", "price", *words]
        words = [command, *places, *words, *(f"{k}={v}" for k, v in last[command].items())]
        findings.case(f"options of {command}", number, partial(_done, words))
        shutil.rmtree(place / "out", ignore_errors=True)


def _table(path: Path) -> Path:
    chance = random.Random(0)
    rows = [
        (chance.gauss(0, 1), chance.gauss(0, 1), chance.choice(("red", "blue"))) for _ in range(24)
    ]
    lines = [f"{x},{z},{c},{'up' if x > z else 'down'},{2 * x - z}" for x, z, c in rows]
    path.write_text("\n".join(("x,z,colour,kind,price", *lines)) + "\n")
    return path
