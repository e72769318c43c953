"""What a column holds, and how its values become numbers: standardised, or one-hot."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data.errors import DataError, listing
from bayesrule.app.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "level", "date", "other"]
Level = str | int | float | bool
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_LEVELS = 100
NOT_ENCODED = {"date": "dates or times", "other": "neither numbers nor text"}
MISSING_WORDS = "empty cells, NA, NaN, None and null count as missing"
_DATE = re.compile(
    r"\d{4}[-/]\d{1,2}([-/]\d{1,2}([ T]\d{1,2}:\d{2}.*)?)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*"
)
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("boolean", "integer", "floating", "mixed-integer-float"), "number"),
    **dict.fromkeys(("decimal", "empty"), "number"),
    **dict.fromkeys(("datetime", "datetime64", "date", "time", "timedelta", "period"), "date"),
    "timedelta64": "date",
    "string": "level",
    "categorical": "level",
}


def kind_of(values: pd.Series[Any]) -> Kind:
    """Say whether a column holds numbers (or truth values), levels, dates or something else."""
    from pandas.api import types

    if types.is_bool_dtype(values.dtype):
        return "number"
    kind = _KINDS.get(types.infer_dtype(values, skipna=True), "other")
    if kind == "level" and not isinstance(values.dtype, types.CategoricalDtype):
        sample = values.dropna().head(20)
        if len(sample) and all(_DATE.fullmatch(str(value).strip()) for value in sample):
            return "date"
    return kind


def plain(value: object) -> Level:
    """Return a cell as a plain Python value that JSON keeps."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    return value if isinstance(value, str | bool | int | float) else str(value)


def text_of(value: object) -> str:
    """Return the text by which levels are compared: 1, 1.0 and "1" are the same level.

    A column of text may come back from another file as numbers, or as fractions when a cell is
    missing.

    >>> text_of(1.0), text_of("1"), text_of(2.5), text_of(True)
    ('1', '1', '2.5', 'True')
    """
    level = plain(value)
    whole = isinstance(level, float) and level.is_integer()
    return str(int(level)) if whole else str(level)


def numbers_of(values: pd.Series[Any]) -> tuple[Floats, Mask]:
    """Return the column as float64, not-a-number where missing, and where it is no number."""
    import pandas as pd

    missing = values.isna().to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(values), bool)
    out, bad = np.full(len(values), np.nan), np.zeros(len(values), bool)
    for i in np.flatnonzero(~missing):
        try:
            out[i] = float(values.iloc[i])
        except (TypeError, ValueError):
            bad[i] = True
    return out, bad


def texts_of(values: pd.Series[Any]) -> tuple[NDArray[np.object_], Mask]:
    """Return the column as level texts and where a value is missing."""
    missing = values.isna().to_numpy(dtype=bool)
    texts = np.array([text_of(value) for value in values.astype(object)], dtype=object)
    return texts, missing


def refuse_missing(name: str, holes: Mask, table: Table, what: str) -> None:
    """Raise an error that names the first rows where a column is missing or infinite."""
    if holes.any():
        rows = table.where(np.flatnonzero(holes).tolist())
        raise DataError(
            f"Column '{name}' of '{table.name}' has no finite value in {rows} ({MISSING_WORDS}). "
            f"{what}"
        )


def _holes_of(name: str, holes: Mask, table: Table, impute: bool) -> Mask:
    """Return where a feature is missing; without ``impute`` it may be nowhere."""
    if not impute:
        advice = "Fill them in, leave the column out with features=, or use missing='impute'."
        refuse_missing(name, holes, table, advice)
    return holes


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, standardised: (x − mean) / std, with the training moments."""

    name: str
    mean: float
    std: float
    median: float
    indicator: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (self.name, f"{self.name} is missing") if self.indicator else (self.name,)

    def encode(self, table: Table, impute: bool, ignore_unseen: bool) -> Floats:
        """Return (n, 1), or (n, 2) with the column that marks missing values."""
        values, bad = numbers_of(table.column(self.name))
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"Column '{self.name}' of '{table.name}' holds numbers in the training data but "
                f"{plain(table.column(self.name).iloc[first])!r} in "
                f"{table.where(np.flatnonzero(bad).tolist())}."
            )
        holes = _holes_of(self.name, ~np.isfinite(values), table, impute)
        scaled = (np.where(holes, self.median, values) - self.mean) / self.std
        return np.column_stack([scaled, holes] if self.indicator else [scaled])


@dataclass(frozen=True)
class LevelColumn:
    """A column of levels, one-hot: one encoded column for each level seen in training."""

    name: str
    levels: tuple[str, ...]
    most_frequent: str
    indicator: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        hot = tuple(f"{self.name}={level}" for level in self.levels)
        return (*hot, f"{self.name} is missing") if self.indicator else hot

    def encode(self, table: Table, impute: bool, ignore_unseen: bool) -> Floats:
        """Return (n, levels), plus one column that marks missing values."""
        texts, missing = texts_of(table.column(self.name))
        holes = _holes_of(self.name, missing, table, impute)
        texts[holes] = self.most_frequent
        codes = {level: code for code, level in enumerate(self.levels)}
        code = np.array([codes.get(text, -1) for text in texts], dtype=np.int64)
        hot = code[:, None] == np.arange(len(self.levels))
        unseen = code < 0
        if unseen.any() and not ignore_unseen:
            first = np.flatnonzero(unseen)
            raise DataError(
                f"Column '{self.name}' of '{table.name}' has the value {texts[first[0]]!r} in "
                f"{table.where(first.tolist())}, which the training data do not have. "
                f"Known: {listing(self.levels)}. Use unseen='ignore' to encode it as none of them."
            )
        return np.column_stack([hot, holes] if self.indicator else [hot]).astype(np.float64)


Column = NumberColumn | LevelColumn


def fit_number(name: str, table: Table, impute: bool) -> NumberColumn | str:
    """Learn the moments of a column of numbers, or return a note that says why it is dropped."""
    values, _ = numbers_of(table.column(name))
    holes = _holes_of(name, ~np.isfinite(values), table, impute)
    present = values[~holes]
    if len(present) == 0:
        return f"Column '{name}' has no values at all: left out."
    # The spread of equal numbers may come out as 1e-17 rather than 0, so compare the extremes.
    constant = bool(present.min() == present.max())
    if constant and not holes.any():
        return f"Column '{name}' is always {present[0]:g}: left out."
    median = float(np.median(present))
    filled = np.where(holes, median, values)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(filled.mean()), float(filled.std())
    if not (math.isfinite(mean) and math.isfinite(std)):
        raise DataError(f"Column '{name}' of '{table.name}' holds numbers too large to scale.")
    return NumberColumn(name, mean, 1.0 if constant or std == 0 else std, median, bool(holes.any()))


def fit_level(name: str, table: Table, impute: bool) -> LevelColumn | str:
    """Learn the levels of a column, or return a note that says why it is dropped."""
    texts, missing = texts_of(table.column(name))
    holes = _holes_of(name, missing, table, impute)
    levels, counts = np.unique(texts[~holes].astype(str), return_counts=True)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"Column '{name}' of '{table.name}' has {len(levels)} different values, such as "
            f"{listing(map(str, levels[:3]))}; at most {MOST_LEVELS} are encoded. Leave it out "
            "with features=, make groups of its values, or turn it into numbers."
        )
    if len(levels) == 0:
        return f"Column '{name}' has no values at all: left out."
    if len(levels) == 1 and not holes.any():
        return f"Column '{name}' is always '{levels[0]}': left out."
    most = str(levels[int(np.argmax(counts))])
    return LevelColumn(name, tuple(map(str, levels)), most, bool(holes.any()))


def fit_column(name: str, table: Table, impute: bool) -> Column | str:
    """Learn how to encode one column, or return a note that says why it is dropped."""
    kind = kind_of(table.column(name))
    if kind == "number":
        return fit_number(name, table, impute)
    if kind == "level":
        return fit_level(name, table, impute)
    example = plain(table.column(name).dropna().iloc[0])
    raise DataError(
        f"Column '{name}' of '{table.name}' holds {NOT_ENCODED[kind]}, such as {example!r}. Turn "
        "it into numbers first (days since a start, month, hour), or leave it out with features=."
    )
