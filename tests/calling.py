"""Calls of the command line, and the small tables they are given."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesrule.app import cli
from benchmarks import __main__ as benchmarks

ROWS = 40
FAST = ["--epochs", "1", "--steps", "20"]


class Said(NamedTuple):
    """What a call gave back."""

    code: int
    out: str
    err: str


def call(*words: str | Path) -> Said:
    """Calls the command line in this process."""
    return _said(cli.main, words)


def bench(*words: str | Path) -> Said:
    """Calls `python -m benchmarks` in this process."""
    return _said(benchmarks.main, words)


def _said(main: Callable[[list[str]], int], words: Sequence[str | Path]) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as leave:
            code = int(leave.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def only_line(said: Said, code: int = 2) -> str:
    """The one line that a fault is told in."""
    assert said.code == code, said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("bayesrule: ")
    return lines[0]


def frame() -> Any:
    """Two numbers, a colour, a price that follows from them, and a kind."""
    import pandas

    rng = np.random.default_rng(0)
    x, z = rng.normal(size=ROWS), rng.normal(size=ROWS)
    colour = rng.choice(["red", "green", "blue"], ROWS)
    price = 2 * x - z + (colour == "red") + 0.1 * rng.normal(size=ROWS)
    kind = np.where(price > 0, "up", "down")
    return pandas.DataFrame({"x": x, "z": z, "colour": colour, "price": price, "kind": kind})


def table(
    folder: Path, name: str = "t.csv", drop: tuple[str, ...] = ("kind",), **cells: Any
) -> Path:
    """Writes the table as csv, whole columns or single cells of it changed: `x={3: nan}, z=1`."""
    content = frame().drop(columns=list(drop))
    for column, values in cells.items():
        if isinstance(values, dict):
            for row, value in values.items():
                content.loc[row, column] = value
        else:
            content[column] = values
    content.to_csv(folder / name, index=False)
    return folder / name


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
