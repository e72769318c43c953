"""Columns of odd cells as text, and an independent definition of what a cell means.

`meaning` shares no code with the library's reader, which it tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

Meaning = str | int | float | bool | None
"""A name, a number, a truth value, or None where the cell is missing."""

_NOTHING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_MOST_DIGITS = 18


def meaning(text: str, decimal: str = ".") -> Meaning:
    """The meaning of a cell by itself.

    >>> meaning(" 1.50"), meaning("007"), meaning("NA"), meaning("True"), meaning("2,5", ",")
    (1.5, '007', None, True, 2.5)
    """
    bare = text.strip()
    if bare in _NOTHING:
        return None
    if bare in _TRUTH:
        return _TRUTH[bare]
    number = _number(bare, decimal)
    return text if number is None else number


def _number(bare: str, decimal: str) -> int | float | None:
    if bare.lstrip("+-").lower() in ("inf", "infinity") and bare[1:2] not in ("+", "-"):
        return float(bare)
    if decimal == ",":
        bare = "no number" if "." in bare else bare.replace(",", ".", 1)
    if not bare or set(bare) - set("0123456789.eE+-"):
        return None
    try:
        Decimal(bare)
    except InvalidOperation:
        return None
    unsigned = bare.lstrip("+-")
    if len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit():
        return None  # the leading zero of a code
    if unsigned.isdigit():
        return int(bare) if len(unsigned) <= _MOST_DIGITS else None
    return float(bare)


# --- columns --------------------------------------------------------------------------------------

Draw = Callable[[random.Random], str]
_WORDS = (
    *("red", "green", "blue", "x", "X", "é", "e\u0301", "ß", "日本", "a b", "x ", " x"),
    *("a,b", "a;b", "a\tb", "a|b", 'say "x"', '"', "'", "'=1+1", "=1+1", "@x", "-x", "+x", "\\"),
    *("line\nend", "<b>", "{x}", "$5", "5%", "8,650", "2,5", "?", "-", "−3", "1 000", "1_000", "٣"),
    *("1", "1.0", "01", "007", "+1", "1e0", "0x1", "True", "true", "yes", "tRuE", "inf", "-inf"),
    *("", "NA", "nan", "None", "null", "n.a.", "2020-01-31", "1/2/2003", "12:30", "1-2", "\u00a0"),
    *("\u202eabc", "%s", "\ufeff", "1e5", "1E-5", "+.5e3", "1e", "e1", "--1", "1-", "1,234,567"),
    *("9" * 19, "9" * 400, "x" * 5000, "1e400", "1e-400", "-0", "0.0", ".5", "5.", "\x7f"),
)  # fmt: skip
_LETTERS = "ab01.,-+eE %'\"?;|\t\u00e9\u2212_/:=@"
_SCALES = (1e-310, 1e-200, 1e-20, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e8, 1e16, 1e30, 1e60, 1e150, 1e300)


def _word(chance: random.Random) -> str:
    if chance.random() < 0.8:
        return chance.choice(_WORDS)
    return "".join(chance.choices(_LETTERS, k=chance.randint(0, 6)))


def _measured(chance: random.Random) -> Draw:
    """Numbers around a centre, of any scale and spread, written in several ways."""
    scale, spread = chance.choice(_SCALES), chance.choice((1e-12, 1e-6, 1.0, 1.0, 1.0, 1e4))
    centre = chance.choice((0.0, 0.0, 1.0)) * scale
    form = chance.choice(("{!r}", "{!r}", "{:.3f}", "{:.2e}", "{:g}", "{:+}"))
    return lambda chance: form.format(centre + scale * spread * chance.gauss(0.0, 1.0))


def _whole(chance: random.Random) -> Draw:
    largest = chance.choice((1, 2, 5, 30, 1000, 10**9, 10**15, 10**17))
    least = chance.choice((0, -largest, largest * 9 // 10))
    return lambda chance: str(chance.randint(least, largest))


def _few(chance: random.Random) -> Draw:
    """A handful of words, as categories have."""
    levels = [_word(chance) for _ in range(chance.randint(1, 6))]
    return lambda chance: chance.choice(levels)


def _code(chance: random.Random) -> Draw:
    digits = chance.choice((2, 3, 4, 19))
    several = [f"{chance.randrange(10**digits):0{digits}d}" for _ in range(chance.randint(2, 12))]
    return lambda chance: chance.choice(several)


def _truth(chance: random.Random) -> Draw:
    words = chance.choice((("True", "False"), ("true", "false"), ("TRUE", "FALSE"), ("True", "0")))
    return lambda chance: chance.choice(words)


def _date(chance: random.Random) -> Draw:
    form = chance.choice(("{}-{:02}-{:02}", "{}/{}/{}", "{2}.{1}.{0}"))
    return lambda chance: form.format(
        chance.randint(1, 9999), chance.randint(1, 12), chance.randint(1, 28)
    )


def _comma(chance: random.Random) -> Draw:
    """Decimal commas or thousands separators, which are sometimes ambiguous."""
    form = chance.choice(("{},{:03d}", "{},{:d}"))
    return lambda chance: form.format(chance.randint(0, 99), chance.randint(0, 999))


_KINDS = (_measured, _measured, _measured, _whole, _whole, _few, _few, _code, _truth, _date, _comma)


def column(chance: random.Random, rows: int) -> list[str]:
    """The cells of one column: of one kind, of two, or of one with a few odd or missing cells."""
    draw = chance.choice(_KINDS)(chance)
    cells = [draw(chance) for _ in range(rows)]
    odd = chance.random()
    other = chance.choice(_KINDS)(chance) if odd < 0.1 else _word
    share = 0.0 if odd > 0.4 else chance.choice((0.02, 0.1, 0.5))
    if 0.1 <= odd < 0.25:
        other = lambda chance: chance.choice(("", "", "NA", "nan"))  # noqa: E731
    return [other(chance) if chance.random() < share else cell for cell in cells]
