"""What a column holds, and how its values become numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bayesrule.app.data import cells
from bayesrule.app.data.errors import DataError, listing
from bayesrule.app.data.spread import heavy_spread, median_of, moments_of
from bayesrule.app.data.table import Floats, Mask, Table, Texts, plain

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "level", "date", "other"]

MOST_LEVELS = 100
MOST_MIXED = 20
_FARTHEST = 1e300
# Numbers of columns with heavy tails stay within this many standard deviations.
_BOUND = 5.0
NOT_ENCODED = {"date": "dates or times", "other": "neither numbers nor text"}
_DATE = re.compile(
    r"-?\d{4,}[-/]\d{1,2}([-/]\d{1,2}([ T]\d{1,2}:\d{2}.*)?)?"
    r"|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*"
)
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("boolean", "integer", "floating", "mixed-integer-float"), "number"),
    **dict.fromkeys(("decimal", "empty"), "number"),
    **dict.fromkeys(("datetime", "datetime64", "date", "time", "period"), "date"),
    **dict.fromkeys(("timedelta", "timedelta64"), "date"),
    **dict.fromkeys(("string", "categorical"), "level"),
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


def are_truth_values(values: pd.Series[Any]) -> bool:
    """Say whether a column holds true and false."""
    from pandas.api import types

    return values.dtype.kind in "bO" and types.infer_dtype(values, skipna=True) == "boolean"


def mixture(name: str, table: Table) -> str | None:
    """Say why a column whose cells mostly look like numbers is taken for categories.

    Codes with leading zeros make it categories, and so does text among few different values. Other
    such columns are refused: one reader would see numbers there and another categories.
    """
    texts, missing = table.texts(name)
    counts = Counter(texts[~missing].tolist())
    odd = {text for text in counts if cells.number(text, table.decimal) is None}
    codes, slips = (set(filter(test, odd)) for test in (cells.is_code, cells.is_slip))
    words = odd - codes - slips
    digits = any(map(str.isdigit, "".join(counts.keys() - words)))
    if not odd or not digits or 2 * sum(counts[text] for text in words) > counts.total():
        return None
    cause = table.doubts(name, [i for i in np.flatnonzero(~missing).tolist() if texts[i] in odd])
    if odd == codes or (odd > slips and len(counts) <= MOST_MIXED):
        return f"Column '{name}' is taken for categories, not numbers, because of {cause}."
    raise DataError(
        f"Column '{name}' of '{table.name}' is not certainly numbers because of {cause}. Write "
        "plain numbers such as 1234.5 and leave unknown cells empty, leave the column out with "
        "features=, or name it with categories= if it holds categories."
    )


def refuse_missing(name: str, holes: Mask, table: Table, what: str) -> None:
    """Raise an error that names the first rows where a column is missing or infinite."""
    if holes.any():
        rows = table.where(np.flatnonzero(holes).tolist())
        raise DataError(
            f"Column '{name}' of '{table.name}' has no finite value in {rows} "
            f"({cells.MISSING_WORDS}). {what}"
        )


def _holes_of(name: str, holes: Mask, table: Table, impute: bool) -> Mask:
    """Return where a feature is missing; without ``impute`` it may be nowhere."""
    if not impute:
        advice = "Fill them in, leave the column out with features=, or use missing='impute'."
        refuse_missing(name, holes, table, advice)
    return holes


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, standardised: (x − mean) / std, with the training moments.

    If some numbers lie far from the others, `heavy` is the spread of the middle half, and x is
    first mapped to `asinh((x − median) / heavy)`: nearly linear for most, logarithmic far out. The
    standardised z then becomes `z / √(1 + (z/5)²)`, within ±5, so that no row weighs a hundred
    times as much as others. With `truth` the words true and false are read as 1 and 0.
    """

    name: str
    mean: float
    std: float
    median: float
    indicator: bool = False
    truth: bool = True
    heavy: float = 0.0

    @property
    def fill(self) -> str:
        """How missing values are filled in, in words."""
        return f"missing values are filled with the median {self.median:g} and marked"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (self.name, f"{self.name} is missing") if self.indicator else (self.name,)

    def encode(self, table: Table, impute: bool, ignore_unseen: bool) -> Floats:
        """Return (n, 1), or (n, 2) with the column that marks missing values."""
        values, bad = table.numbers(self.name, self.truth)
        if bad.any():
            doubts = table.doubts(self.name, np.flatnonzero(bad).tolist())
            raise DataError(
                f"Column '{self.name}' of '{table.name}' holds numbers in the training data but "
                f"{doubts}. Write plain numbers such as 1234.5."
            )
        holes = _holes_of(self.name, ~np.isfinite(values), table, impute)
        with np.errstate(over="ignore"):  # infinite results are refused later
            drawn_in = _drawn_in(np.where(holes, self.median, values), self.median, self.heavy)
            scaled = (drawn_in - self.mean) / self.std
        if self.heavy:
            scaled /= np.sqrt(1.0 + np.square(scaled / _BOUND))
        return np.column_stack([scaled, holes] if self.indicator else [scaled])


@dataclass(frozen=True)
class LevelColumn:
    """A column of levels, one-hot: one encoded column for each level seen in training."""

    name: str
    levels: tuple[str, ...]
    most_frequent: str
    indicator: bool = False

    @property
    def fill(self) -> str:
        """How missing values are filled in, in words."""
        most = self.most_frequent
        return f"missing values are filled with the most frequent value '{most}' and marked"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        hot = tuple(f"{self.name}={level}" for level in self.levels)
        return (*hot, f"{self.name} is missing") if self.indicator else hot

    def encode(self, table: Table, impute: bool, ignore_unseen: bool) -> Floats:
        """Return (n, levels), plus one column that marks missing values."""
        texts, missing = table.texts(self.name)
        holes = _holes_of(self.name, missing, table, impute)
        texts[holes] = self.most_frequent
        codes = {level: code for code, level in enumerate(self.levels)}
        code = np.array([codes.get(text, -1) for text in texts], dtype=np.int64)
        hot = code[:, None] == np.arange(len(self.levels))
        unseen = code < 0
        if unseen.any() and not ignore_unseen:
            rows = np.flatnonzero(unseen).tolist()
            raise DataError(
                f"Column '{self.name}' of '{table.name}' has the value "
                f"{cells.brief(texts[rows[0]])} in {table.where(rows)}, which the training data do "
                "not have. "
                f"Known: {listing(self.levels)}. Use unseen='ignore' to encode it as none of them."
            )
        return np.column_stack([hot, holes] if self.indicator else [hot]).astype(np.float64)


Column = NumberColumn | LevelColumn


def fit_column(
    name: str, table: Table, impute: bool, category: bool = False
) -> tuple[Column | None, list[str]]:
    """Learn how to encode one column (None leaves it out), with notes on what is odd about it.

    A `category` is one-hot even if it looks like numbers.
    """
    series = table.column(name)
    kind = "level" if category else kind_of(series)
    if kind in NOT_ENCODED:
        raise DataError(
            f"Column '{name}' of '{table.name}' holds {NOT_ENCODED[kind]}, such as "
            f"{cells.brief(plain(series.dropna().iloc[0]))}. Turn it into numbers first (days "
            "since a start, month, hour), or leave it out with features=."
        )
    number = kind == "number"
    note = None if number or category else mixture(name, table)
    values: Any = table.numbers(name)[0] if number else table.texts(name)[0]
    missing = ~np.isfinite(values) if number else series.isna().to_numpy(dtype=bool)
    holes = _holes_of(name, missing, table, impute)
    present = values[~holes]
    if len(present) == 0:
        return None, [f"Column '{name}' has no values at all: left out."]
    if not holes.any() and (present == present[0]).all():
        always = f"{present[0]:g}" if number else f"'{present[0]}'"
        return None, [f"Column '{name}' is always {always}: left out."]
    column = (_fit_number if number else _fit_level)(name, table, values, holes)
    return column, [note] if note else []


def _fit_number(name: str, table: Table, values: Floats, holes: Mask) -> NumberColumn:
    present = values[~holes]
    median, heavy = median_of(present), heavy_spread(present)
    mean, std = moments_of(_drawn_in(np.where(holes, median, values), median, heavy))
    # Rounding of the mean may give equal numbers a spread above 0: compare the extremes.
    if present.min() == present.max():
        mean, std = median, 1.0
    truth = are_truth_values(table.column(name))
    return NumberColumn(name, mean, std, median, bool(holes.any()), truth, heavy)


def _drawn_in(values: Floats, median: float, heavy: float) -> Floats:
    """Numbers on the scale on which a column is standardised: asinh if its tails are heavy."""
    if not heavy:
        return values
    with np.errstate(over="ignore"):
        return np.arcsinh(np.clip(values / heavy - median / heavy, -_FARTHEST, _FARTHEST))


def _fit_level(name: str, table: Table, texts: Texts, holes: Mask) -> LevelColumn:
    counts = Counter(texts[~holes].tolist())
    levels = sorted(counts)
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"Column '{name}' of '{table.name}' has {len(levels)} different values, such as "
            f"{listing(levels[:3])}; at most {MOST_LEVELS} are encoded. Leave it out with "
            "features=, make groups of its values, or turn it into numbers."
        )
    most = max(levels, key=counts.__getitem__)
    return LevelColumn(name, tuple(levels), most, bool(holes.any()))
