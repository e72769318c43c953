"""Read csv and tsv text strictly: what pandas would guess or drop silently is an error here.

Every cell is read as text. A column becomes numbers if each of its cells certainly is one
(`cells.number`); the table also keeps the cells as the file spells them.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import unicodedata
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data import cells
from bayesrule.app.data.errors import DataError, Faults, listing, printable, reason, require
from bayesrule.app.data.table import Mask, Table, refuse_repeats

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (",", ";", "\t", "|")
_QUOTED = re.compile('"[^"]*"')
_ENOUGH = 10**6  # characters in which to look for the separator


def _text(path: Path) -> str:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    name = printable(path)
    try:
        with opened(path, "rb") as stream:
            raw = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Cannot read '{name}': {reason(error)}.") from error
    if not raw.strip():
        raise DataError(f"'{name}' is empty.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{name}' is not text in UTF-8: byte {error.start} is {raw[error.start]:#04x}. "
            "Save it as csv in UTF-8."
        ) from error
    if "\0" in text:
        raise DataError(f"'{name}' holds zero bytes: it is a binary file, not csv.")
    return io.StringIO(text, newline=None).read()  # line ends are \n from here on


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of each record that is not blank, as pandas counts them."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    line = 1
    for fields in reader:
        if fields and not (len(fields) == 1 and not fields[0].strip()):
            yield line, fields
        line = reader.line_num + 1


@dataclass(frozen=True)
class RowLines:
    """The line of a file on which a data row begins; reads the file again at the first call."""

    path: Path
    separator: str

    def __call__(self, row: int) -> int | None:
        return self._lines[row + 1] if row + 1 < len(self._lines) else None

    @cached_property
    def _lines(self) -> list[int]:
        lines: list[int] = []
        with suppress(csv.Error, DataError):
            lines += (line for line, _ in _records(_text(self.path), self.separator))
        return lines


def _separator(text: str, separators: tuple[str, ...]) -> str:
    """Find the separator: the most frequent one in the header, outside of quotes.

    One that divides the first row into as many fields as the header is preferred. In quotes a
    separator is part of a name, and so is a line end.
    """
    start = text[:_ENOUGH]
    first = _QUOTED.sub("", start).lstrip("\n").partition("\n")[0]

    def rank(separator: str) -> tuple[bool, int]:
        sizes = list[int]()
        # Split by the wrong separator, a field may exceed the limit of csv.
        with suppress(csv.Error):
            sizes += (len(fields) for _, fields in islice(_records(start, separator), 2))
        return len(sizes) == 2 and sizes[0] == sizes[1] > 1, first.count(separator)

    return max(separators, key=rank)


def _refuse_blank_lines(text: str, name: str, separator: str) -> None:
    """Raise if a blank line stands between the rows of a file that has one column.

    It may be a missing value; skipping it would renumber all later rows.
    """
    reader, lines = csv.reader(io.StringIO(text), delimiter=separator), list[tuple[int, bool]]()
    with suppress(csv.Error):  # a cell over the limit of csv; the lines before it are known
        # An empty cell in quotes is a row.
        lines += ((reader.line_num, row == [""] or bool("".join(row).strip())) for row in reader)
    full = [line for line, filled in lines if filled]
    if inside := [line for line, filled in lines if not filled and full[0] < line < full[-1]]:
        raise DataError(
            f"'{name}' has one column, and line {inside[0]} is blank: a missing value, or nothing? "
            "Write NA where a value is missing, and delete other blank lines."
        )


def _check_header(header: list[str], name: str) -> None:
    faults, named = Faults(), [column for column in header if column]
    with faults.noted():
        refuse_repeats(named, name)
    if odd := [column for column in named if any(map(_is_control, column))]:
        fault = f"'{name}' has control characters in the column names {listing(odd)}."
        faults.found.append(f"{fault} Write the names without them.")
    # Whole numbers may be names (0, 1, 2, or years); fractions never are.
    numbers = named and all(cells.number(column) is not None for column in named)
    if numbers and not all(column.isdigit() for column in named):
        faults.found.append(
            f"The first line of '{name}' holds only numbers ({', '.join(named[:4])}, ...). "
            "It must name the columns: add a line of names."
        )
    faults.refuse()


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def _parse(text: str, name: str, separator: str) -> pd.DataFrame:
    pandas = require("pandas", "Reading csv files")
    options: dict[str, Any] = {"index_col": False, "low_memory": False, "skipinitialspace": True}
    try:
        with warnings.catch_warnings():
            # pandas only warns when it throws fields away; a lost field is an error here.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame: pd.DataFrame = pandas.read_csv(
                io.StringIO(text), sep=separator, dtype=str, na_filter=False, **options
            )
    except (ValueError, pandas.errors.ParserWarning, pandas.errors.ParserError) as error:
        _refuse_long_rows(text, name, separator)
        raise DataError(f"Cannot read '{name}' as a table: {reason(error)}.") from error
    frame.columns = pandas.Index([str(column).strip() for column in frame.columns])
    refuse_repeats(list(frame.columns), name)
    return frame


def _refuse_long_rows(text: str, name: str, separator: str) -> None:
    """Raise an error that names all rows that are longer than the header."""
    with suppress(csv.Error):
        records = _records(text, separator)
        width = len(next(records)[1])
        if long := [(line, len(fields)) for line, fields in records if len(fields) > width]:
            lines = ", ".join(f"line {line} ({fields} fields)" for line, fields in long[:5])
            more = f", ... ({len(long)} lines in all)" if len(long) > 5 else ""
            raise DataError(
                f"'{name}' has more fields than column names ({width}) in {lines}{more}. Put "
                f"values that contain '{separator}' in double quotes."
            )


def _decimal(frame: pd.DataFrame, separator: str) -> str | None:
    """Return the decimal mark that a file uses, None if its cells show none or both."""
    if separator == ",":
        return "."
    columns = [[cell.strip() for cell in frame[name].tolist()] for name in frame]
    comma = any(map(_shows_commas, columns))
    point = any("." in cell and cells.number(cell) is not None for c in columns for cell in c)
    return None if comma == point else "," if comma else "."


def _shows_commas(column: list[str]) -> bool:
    """Whether most cells are numbers with decimal commas, and at least one certainly is."""
    if not any(map(cells.is_decimal_comma, column)):
        return False
    present = [cell for cell in column if cell not in cells.MISSING]
    return 2 * sum(cells.number(cell, ",") is not None for cell in present) > len(present)


def _typed(column: list[str], missing: Mask, decimal: str | None) -> NDArray[Any] | None:
    """Return the numbers or truth values that all cells certainly are, or None."""
    present = list(compress(column, ~missing)) if missing.any() else column
    words = len(present) > 0 and present[0] in cells.TRUTH
    parsed: Any = list(map(cells.TRUTH.get, present)) if words else cells.numbers(present, decimal)
    if parsed is None or (words and None in parsed):
        return None
    values = np.array(parsed)
    if not missing.any():
        # A long whole number among fractions must not lose its last digits as a float.
        return values if values.tolist() == parsed else np.array(parsed, dtype=object)
    out = np.full(len(column), np.nan, dtype=object if words else np.float64)
    out[~missing] = values
    return out


def _column(texts: pd.Series[Any], decimal: str | None) -> Any:
    """Return a column as numbers where all cells are numbers, else as text."""
    column = list(map(str.strip, texts.tolist()))
    missing = np.array(list(map(cells.MISSING.__contains__, column)))
    values = _typed(column, missing, decimal)
    return texts.mask(missing) if values is None else values


def _without_row_numbers(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Drop a nameless first column that only counts the rows, as pandas writes it."""
    first = frame.iloc[:, 0]
    nameless = first.name == "Unnamed: 0" and frame.shape[1] > 1
    if nameless and first.dtype.kind == "i" and first.tolist() == list(range(len(frame))):
        return frame.iloc[:, 1:], ("The nameless first column only counts the rows: left out.",)
    return frame, ()


def read_delimited(path: Path, separators: tuple[str, ...] = SEPARATORS) -> Table:
    """Read csv or tsv text; the separator is found in its first lines."""
    text, name = _text(path), printable(path)
    try:
        separator = _separator(text, separators)
        _, header = next(_records(text, separator))
    except (csv.Error, StopIteration) as error:
        raise DataError(f"Cannot read the first line of '{name}': {error}") from error
    _check_header([column.strip() for column in header], name)
    if len(header) == 1:
        _refuse_blank_lines(text, name, separator)
    texts = _parse(text, name, separator)
    if len(texts) == 0:
        raise DataError(f"'{name}' has a line of column names but no rows.")
    decimal = _decimal(texts, separator)
    typed = type(texts)({name: _column(column, decimal) for name, column in texts.items()})
    frame, notes = _without_row_numbers(typed)
    lines = RowLines(path, separator)
    return Table(frame, name, notes=notes, line=lines, spelled=texts, decimal=decimal)
