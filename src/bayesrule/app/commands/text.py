"""Tables and figures as text."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in line; the first to the left, the others to the right.

    >>> print(table(["a", "b"], [["x", "1.0"], ["long", "10.0"]]))
    a        b
    x      1.0
    long  10.0
    """
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def words(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of words, all to the left."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


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
