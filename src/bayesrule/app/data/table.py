"""A table with named columns that remembers where each row came from and how cells were written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.app.data import cells
from bayesrule.app.data.errors import DataError, listing, nearest

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Texts = NDArray[np.object_]
Level = str | int | float | bool


def plain(value: object) -> Level:
    """Return a cell as a plain Python value that JSON keeps."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | bool | int | float) else str(value)


def text_of(value: object) -> str:
    """Return the text by which levels are compared: 1 and 1.0 are one level, "1.0" another.

    >>> text_of(1.0), text_of("1"), text_of(2.5), text_of(True), text_of("1.0")
    ('1', '1', '2.5', 'True', '1.0')
    """
    level = plain(value)
    whole = isinstance(level, float) and level.is_integer()
    return str(int(level)) if whole else str(level)


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, held in a pandas frame whose index is the original row.

    - `name`: the table's name in messages.
    - `target`: the column that a built-in set is meant to predict.
    - `notes`: sentences about what reading the file changed.
    - `line`: for a text file, the line on which a row begins.
    - `spelled`: for a text file, all rows cell by cell as written: 1.50 where the frame has 1.5.
    - `decimal`: the decimal mark that the file uses.
    """

    frame: pd.DataFrame
    name: str = "table"
    target: str | None = None
    notes: tuple[str, ...] = ()
    line: Callable[[int], int | None] | None = None
    spelled: pd.DataFrame | None = None
    decimal: str | None = None

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, name: str = "table") -> Table:
        """Wrap a pandas frame; column names become strings, the index becomes 0, 1, ..."""
        copy = frame.reset_index(drop=True)
        copy.columns = copy.columns.map(str)
        refuse_repeats(list(copy.columns), name)
        return cls(copy, name)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(self.frame.columns)

    @cached_property
    def _cached_columns(self) -> dict[str, pd.Series[Any]]:
        """Columns that were asked for: pandas is slow to take one out of a wide frame."""
        return {}

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, index: Tensor | Sequence[int]) -> Table:
        """Return the rows at these positions; messages keep naming the original rows."""
        positions = np.asarray(index, dtype=np.int64)
        return replace(self, frame=self.frame.iloc[positions])

    def without(self, names: Iterable[str]) -> Table:
        """Return the table without these columns."""
        return replace(self, frame=self.frame.drop(columns=[self.column(n).name for n in names]))

    def column(self, name: str) -> pd.Series[Any]:
        """Return one column; for an unknown name, a DataError lists the columns and the nearest."""
        if name in self._cached_columns:
            return self._cached_columns[name]
        if name not in self.frame.columns:
            raise DataError(
                f"'{self.name}' has no column '{name}'.{nearest(name, self.columns)} "
                f"Its columns are {listing(self.columns)}."
            )
        return self._cached_columns.setdefault(name, self.frame[name])

    def as_written(self, name: str) -> list[Any]:
        """Return a column's cells as the file spells them, or else its values, None if missing."""
        values = self.column(name)
        if self.spelled is not None:
            return self.spelled[name].iloc[values.index].tolist()
        return [None if gone else plain(v) for v, gone in zip(values, values.isna(), strict=True)]

    def texts(self, name: str) -> tuple[Texts, Mask]:
        """Return a column as text, exactly as in the file, and a mask of missing values."""
        texts = list(map(text_of, self.as_written(name)))
        return np.array(texts, dtype=object), self.column(name).isna().to_numpy(dtype=bool)

    def exact(self, name: str, truth: bool = True) -> tuple[list[Any], Mask]:
        """Return a column with texts that are numbers as numbers, and a mask of missing values.

        Without `truth` the words true and false of a text file stay texts.
        """
        values = self.column(name)
        words = values.dtype.kind in "bO" and not truth
        every = self.as_written(name) if words else values.tolist()
        parsed = [self._number(v, truth) if isinstance(v, str) else v for v in every]
        return parsed, values.isna().to_numpy(dtype=bool)

    def _number(self, cell: str, truth: bool) -> Level:
        value = cells.number(cell, self.decimal)
        if value is None and truth:
            value = cells.TRUTH.get(cell.strip())
        return cell if value is None else value

    def numbers(self, name: str, truth: bool = True) -> tuple[Floats, Mask]:
        """Return a column as float64, NaN if missing, and a mask of cells that are not numbers."""
        values, bad = self.column(name), np.zeros(len(self), bool)
        if values.dtype.kind in "iuf":
            return values.to_numpy(dtype=np.float64, na_value=np.nan), bad
        every, missing = self.exact(name, truth)
        out = np.full(len(self), np.nan)
        for i in np.flatnonzero(~missing):
            bad[i] = True
            with suppress(TypeError, ValueError, OverflowError):
                if not isinstance(every[i], str | bytes):
                    out[i], bad[i] = float(every[i]), False
        return out, bad

    def where(self, positions: Sequence[int], most: int = 3) -> str:
        """Name rows for a message: the 0-based data row, and the line if the file is text."""
        named = []
        for position in positions[:most]:
            row = int(self.frame.index[int(position)])
            line = self.line(row) if self.line is not None else None
            named.append(f"row {row}" if line is None else f"row {row} (line {line})")
        more = f", ... ({len(positions)} rows in all)" if len(positions) > most else ""
        return ", ".join(named) + more

    def doubts(self, name: str, positions: Sequence[int], most: int = 3) -> str:
        """Name cells that are not numbers: their values, rows and reasons."""
        texts, rows = self.texts(name)[0], dict[str, list[int]]()
        for position in positions:
            rows.setdefault(texts[position], []).append(position)
        named = [
            f"{cells.brief(text)} in {self.where(places)}: {cells.doubt(text, self.decimal)}"
            for text, places in list(rows.items())[:most]
        ]
        more = f"; ... ({len(rows)} such values in all)" if len(rows) > most else ""
        return "; ".join(named) + more


def refuse_repeats(names: Sequence[str], where: str) -> None:
    """Raise if a column name occurs twice."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(
            f"'{where}' has more than one column named {listing(repeated)}. "
            "Give each column its own name."
        )
