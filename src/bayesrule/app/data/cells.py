"""What one cell of text says: a number, a truth value, nothing, or something else, and why.

A cell is a number only if it can mean nothing else. Its meaning never depends on the other rows of
its file.
"""

from __future__ import annotations

import re
from contextlib import suppress

MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
     "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
"""The texts that stand for a missing value: those of pandas."""
MISSING_WORDS = "empty cells, NA, NaN, None and null count as missing"
TRUTH = {text: text[0] in "tT" for word in ("true", "false")
         for text in (word, word.upper(), word.capitalize())}  # fmt: skip
"""The texts that mean true or false."""
MOST_DIGITS = 18

_WHOLE = re.compile(rf"[+-]?(?:0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})")
_NUMBER = re.compile(
    _WHOLE.pattern
    + r"|[+-]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    + r"|[+-]?(?:0|[1-9][0-9]*)[eE][+-]?[0-9]+|[+-]?(?i:inf|infinity)"
)
# Columns of only these characters are read at once, ten times as fast as cell by cell.
_PLAIN = b"0123456789eE+.-\0"
_CODE = re.compile(rb"\0[+-]?(?:0[0-9]|[0-9]{19})")
# Whole numbers among fractions that may have more digits than a float keeps.
_LONG = re.compile(rb"\0[+-]?[0-9]{16,}(?![0-9.eE])")
_PLACEHOLDER = re.compile(r"[?*.\-–—_/]+")
_MINUS = "−–—‐‑‒﹣－"
_DRESS = re.compile(rf"[\s%‰$€£¥₹,'’()]|^[{_MINUS}]")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")


def number(cell: str, decimal: str | None = None) -> int | float | None:
    """Return the number that a cell certainly is, or None; `decimal` is the file's decimal mark.

    >>> number("12"), number("-1.5e3"), number("007"), number("1,5"), number("1,5", decimal=",")
    (12, -1500.0, None, None, 1.5)
    """
    cell = cell.strip()
    if decimal == ",":
        cell = "?" if "." in cell else cell.replace(",", ".", 1)
    if not _NUMBER.fullmatch(cell):
        return None
    return int(cell) if _WHOLE.fullmatch(cell) else float(cell)


def numbers(column: list[str], decimal: str | None = None) -> list[int] | list[float] | None:
    """Return `number` of all cells of a column, or None if one of them is not a number."""
    joined = "\0".join(("", *column)).encode()
    if decimal != "," and not joined.translate(None, _PLAIN) and not _CODE.search(joined):
        whole = not any(sign in joined for sign in (b".", b"e", b"E"))
        with suppress(ValueError):
            if whole or not _LONG.search(joined):
                return list(map(int if whole else float, column))
    values = [number(cell, decimal) for cell in column]
    return None if None in values else values  # type: ignore[return-value]


def is_code(cell: str) -> bool:
    """Say whether the digits are those of a code, such as 0215 or a card's number."""
    digits = cell.strip().lstrip("+-").replace(".", "", 1)
    return digits.isascii() and digits.isdecimal() and number(cell) is None


def is_slip(cell: str) -> bool:
    """Say whether a cell seems meant as a number or a missing value: 5%, 1,234, −3, ?."""
    meant = number(_DRESS.sub("", cell.strip())) is not None
    return meant or _PLACEHOLDER.fullmatch(cell.strip()) is not None


def is_decimal_comma(cell: str) -> bool:
    """Say whether the comma of a cell can only be a decimal mark: 2,5 and 0,125, not 8,650."""
    cell = cell.strip()
    return bool(_DECIMAL_COMMA.fullmatch(cell)) and not _THOUSANDS.fullmatch(cell)


def doubt(cell: str, decimal: str | None = None) -> str:
    """Say why a cell is not certainly a number.

    >>> doubt("0215"), doubt("8,650"), doubt("?"), doubt("red")
    ('leading zero', 'may be 8.650 or 8650', 'a placeholder', 'text')
    """
    bare = cell.strip()
    if is_code(bare):
        zero = bare.lstrip("+-").startswith("0")
        return "leading zero" if zero else f"more than {MOST_DIGITS} digits"
    if _THOUSANDS.fullmatch(bare):
        return f"may be {bare.replace(',', '.')} or {bare.replace(',', '')}"
    if _PLACEHOLDER.fullmatch(bare):
        return "a placeholder"
    if decimal == "," and "." in bare and number(bare) is not None:
        return "a point, where the file has decimal commas"
    return _dress(bare) if is_slip(bare) else "text"


def _dress(cell: str) -> str:
    """Name the first character of a cell that does not belong to a plain number."""
    sign = next(iter(_DRESS.findall(cell)), " ")
    descriptions = {
        ",": "a comma",
        "%": "a percent sign",
        **dict.fromkeys(_MINUS, "a minus other than '-'"),
    }
    return descriptions.get(sign, f"the sign {sign!r}" if sign.strip() else "a space")


def brief(cell: object, most: int = 40) -> str:
    """Return a cell as messages show it, cut where it is long.

    >>> brief("red"), brief("9" * 50, most=4)
    ("'red'", "'9999...' (50 characters)")
    """
    text = str(cell)
    cut = f"{text[:most] + '...'!r} ({len(text)} characters)"
    return repr(cell) if len(text) <= most else cut
