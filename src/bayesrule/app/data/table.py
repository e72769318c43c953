"""A table with named columns that remembers where each row came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bayesrule.app.data.errors import DataError, listing, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, held in a pandas frame whose index is the original row.

    Attributes:
        frame: the columns; its index keeps the 0-based row of the source through :meth:`rows`.
        name: how messages call the table, a path or the name of a built-in set.
        target: the column that a built-in set is meant to predict, if any.
        notes: sentences about what was done on reading.
        line: the line of the file on which a row begins, where the source has lines.
    """

    frame: pd.DataFrame
    name: str = "table"
    target: str | None = None
    notes: tuple[str, ...] = ()
    line: Callable[[int], int | None] | None = None

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

    def __len__(self) -> int:
        return len(self.frame)

    def rows(self, index: Tensor | Sequence[int]) -> Table:
        """Return the rows at these positions; messages keep naming the original rows."""
        positions = np.asarray(index, dtype=np.int64)
        return replace(self, frame=self.frame.iloc[positions])

    def column(self, name: str) -> pd.Series[Any]:
        """Return one column; a DataError names the columns there are and the nearest one."""
        if name not in self.frame.columns:
            raise DataError(
                f"'{self.name}' has no column '{name}'.{nearest(name, self.columns)} "
                f"Its columns are {listing(self.columns)}."
            )
        return self.frame[name]

    def where(self, positions: Sequence[int], most: int = 3) -> str:
        """Name rows for a message: the 0-based data row, and the line where there is a file."""
        named = []
        for position in positions[:most]:
            row = int(self.frame.index[int(position)])
            line = self.line(row) if self.line is not None else None
            named.append(f"row {row}" if line is None else f"row {row} (line {line})")
        more = f", ... ({len(positions)} rows in all)" if len(positions) > most else ""
        return ", ".join(named) + more


def refuse_repeats(names: Sequence[str], where: str) -> None:
    """Raise when a column name occurs twice."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(
            f"'{where}' has more than one column named {listing(repeated)}. "
            "Give each column its own name."
        )
