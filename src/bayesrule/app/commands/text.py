"""Tables, figures and json documents as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def data_summary(name: str, rows: int, features: int, reason: str, notes: Iterable[str]) -> str:
    """What the data are: the size of the table, the task and the notes on its columns."""
    first = f"{name}: {rows} rows, {features} features. {reason}"
    return "\n".join([first, *(f"  {note}" for note in notes)])


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    pad: Callable[[str, int], str] = str.rjust,
) -> str:
    """Aligned columns: the first to the left, the others as `pad` says.

    >>> print(table(["a", "b"], [["x", "1.0"], ["long", "10.0"]]))
    a        b
    x      1.0
    long  10.0
    """
    columns = zip(head, *rows, strict=True)
    pads = [str.ljust, *[pad] * (len(head) - 1)]
    padded = [_padded(cells, how) for cells, how in zip(columns, pads, strict=True)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _padded(cells: Sequence[str], pad: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, cells))
    return [pad(cell, width) for cell in cells]


def figure(value: float) -> str:
    """A number with as many digits as are worth reading.

    >>> figure(0.01234), figure(1234.5), figure(2e30), figure(float("nan"))
    ('0.0123', '1234', '2e+30', '–')
    """
    if value != value:
        return "–"
    size = abs(value)
    if size >= 1e6:
        return f"{value:.3g}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:.{digits}f}" if size >= 0.1 or value == 0 else f"{value:.3g}"


def with_error(value: float, error: float) -> str:
    """A number and its standard error, to the same decimals.

    >>> with_error(-5.4061, 0.0291), with_error(53.7, 1.6), with_error(0.0123, 0.004)
    ('-5.406 ± 0.029', '53.70 ± 1.60', '0.0123 ± 0.0040')
    """
    shown = figure(value)
    if "e" in shown or value != value:
        return f"{shown} ± {figure(error)}"
    decimals = len(shown.partition(".")[2])
    return f"{shown} ± {error:.{decimals}f}"


def as_json(document: Any) -> str:
    """A document as json text; numbers that are not finite become null."""
    finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return json.dumps(finite, indent=2)
