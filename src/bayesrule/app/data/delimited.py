"""Read csv and tsv text strictly: what pandas would guess or drop silently is an error here."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrule.app.data.cache import read_unpacked
from bayesrule.app.data.errors import DataError, require
from bayesrule.app.data.table import Table, refuse_repeats

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (",", ";", "\t", "|")
_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?(e[-+]?\d+)?\s*", re.IGNORECASE)


def _text(path: Path) -> str:
    raw = read_unpacked(path)
    if not raw.strip():
        raise DataError(f"'{path}' is empty.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"'{path}' is not text in UTF-8: byte {error.start} is {raw[error.start]:#04x}. "
            "Save it as csv in UTF-8."
        ) from error
    if "\0" in text:
        raise DataError(f"'{path}' holds zero bytes: it is a binary file, not csv.")
    return io.StringIO(text, newline=None).read()  # one kind of line end from here on


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, fields) of each record that is not blank, as pandas counts them."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    line = 1
    for fields in reader:
        if fields and not (len(fields) == 1 and not fields[0].strip()):
            yield line, fields
        line = reader.line_num + 1


def line_of_row(path: Path, separator: str, row: int) -> int | None:
    """Return the line on which a data row begins, counting blank and many-line records right."""
    try:
        for count, (line, _) in enumerate(_records(_text(path), separator)):
            if count == row + 1:
                return line
    except (csv.Error, DataError):
        return None
    return None


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_header(header: list[str], path: Path) -> None:
    named = [name for name in header if name]
    refuse_repeats(named, str(path))
    # Whole numbers may be names (0, 1, 2, or years); a fraction never is.
    if named and all(_is_float(name) for name in named) and not all(n.isdigit() for n in named):
        raise DataError(
            f"The first line of '{path}' holds only numbers ({', '.join(named[:4])}, ...). "
            "It must name the columns: add a line of names."
        )


def _parse(text: str, path: Path, **options: str) -> pd.DataFrame:
    pandas = require("pandas", "Reading csv files")
    options_for_all = {"index_col": False, "low_memory": False, "skipinitialspace": True}
    try:
        with warnings.catch_warnings():
            # pandas only warns when it throws fields away; a lost field is an error here.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame: pd.DataFrame = pandas.read_csv(io.StringIO(text), **options_for_all, **options)
    except pandas.errors.ParserWarning as error:
        raise DataError(f"'{path}' has rows with more fields than column names.") from error
    except (ValueError, pandas.errors.ParserError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"Cannot read '{path}' as a table: {reason}") from error
    frame.columns = frame.columns.str.strip()
    return frame


def _has_decimal_commas(frame: pd.DataFrame) -> bool:
    """Whether some column is all numbers such as 2,5 that were read as text."""
    for name in frame.columns:
        cells = frame[name].dropna()
        if len(cells) and all(isinstance(cell, str) and _COMMA.fullmatch(cell) for cell in cells):
            return True
    return False


def _without_row_numbers(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Drop a nameless first column that only counts the rows, as saved data frames have."""
    first = str(frame.columns[0])
    counts = first.startswith("Unnamed") and frame.shape[1] > 1
    if counts and frame.iloc[:, 0].tolist() == list(range(len(frame))):
        return frame.iloc[:, 1:], ("The nameless first column only counts the rows: left out.",)
    return frame, ()


def read_delimited(path: Path, separators: tuple[str, ...] = SEPARATORS) -> Table:
    """Read csv or tsv text; of the separators, the one most frequent in the header is taken."""
    text = _text(path)
    first = text.lstrip("\n").partition("\n")[0]
    separator = max(separators, key=first.count)
    try:
        _, header = next(_records(text, separator))
    except (csv.Error, StopIteration) as error:
        raise DataError(f"Cannot read the first line of '{path}': {error}") from error
    _check_header([name.strip() for name in header], path)
    frame = _parse(text, path, sep=separator)
    if separator == ";" and _has_decimal_commas(frame):
        frame = _parse(text, path, sep=separator, decimal=",")
    if len(frame) == 0:
        raise DataError(f"'{path}' has a line of column names but no rows.")
    frame, notes = _without_row_numbers(frame)
    return Table(frame, str(path), notes=notes, line=partial(line_of_row, path, separator))
