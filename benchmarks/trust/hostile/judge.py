"""Tests whether a table was read correctly, by exact fractions and plain Python.

A table is *refused* by a `DataError`, or *read*. Anything read wrongly and silently raises `Wrong`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from bayesrule.app.data import Encoder, Table
from bayesrule.app.data.columns import Column, NumberColumn
from benchmarks.trust.hostile.cells import Meaning, meaning
from benchmarks.trust.hostile.tables import Sheet

_EPS = float(np.finfo(np.float64).eps)
_STEP = 5e-324  # from one number to the next where they are smallest


class Wrong(AssertionError):
    """Something was read or written wrongly without an error."""


def require(holds: bool, what: str) -> None:
    """Raises `Wrong` if a condition does not hold."""
    if not holds:
        raise Wrong(what)


@dataclass(frozen=True)
class Encoded:
    """An encoder, the features it was offered, and those declared as categories."""

    encoder: Encoder
    features: Sequence[str]
    categories: Sequence[str]


def reading(sheet: Sheet, table: Table, offered: Encoded) -> None:
    """Checks the names, cells, features and targets of an encoded table."""
    encoder = offered.encoder
    sheet = _with_mark(sheet, table.decimal)
    names = sheet.known_as
    gone = [name for name in names if name and name not in table.columns]
    counted = any("counts the rows" in note for note in table.notes)
    require(counted or not gone, f"columns {gone} are gone; there are {table.columns}")
    require(len(table) == len(sheet.columns[0]), f"{len(table)} rows")
    sizes = np.cumsum([len(column.outputs) for column in encoder.columns])
    parts = np.split(encoder.transform(table).double().numpy(), sizes[:-1], axis=1)
    columns = {
        column.name: (column, part) for column, part in zip(encoder.columns, parts, strict=True)
    }
    for place, name in enumerate(names):
        if name == encoder.target:
            _targets(sheet, place, table, encoder)
        elif name in columns:
            told = name in offered.categories or any(f"'{name}'" in note for note in encoder.notes)
            _feature(sheet, place, *columns[name], told)
        elif name in offered.features:
            _absent(name, sheet.meanings(place), encoder)


def _with_mark(sheet: Sheet, mark: str | None) -> Sheet:
    """The sheet with the reader's decimal mark, if that is justified.

    At least one comma must be unambiguously decimal, and no number may have a point.
    """
    if not sheet.text or mark != ",":
        return replace(sheet, decimal=".")
    every = [cell.strip() for place in range(len(sheet.names)) for cell in sheet.written(place)]
    commas = any(_only_decimal(cell) for cell in every)
    points = any("." in cell and isinstance(meaning(cell), float) for cell in every)
    require(commas and not points, "commas are taken for decimal marks without a reason")
    return replace(sheet, decimal=",")


def _only_decimal(cell: str) -> bool:
    """Whether a comma is where no thousands separator can be."""
    whole, _, digits = cell.partition(",")
    number = isinstance(meaning(cell, ","), float)
    unsigned = whole.lstrip("+-")
    thousands = len(digits) == 3 and digits.isdigit() and 0 < len(unsigned) <= 3
    return number and not (thousands and unsigned[0] != "0")


def _absent(name: str, meanings: Sequence[Meaning], encoder: Encoder) -> None:
    # As floats, which networks learn from.
    different = {_finite(m) if isinstance(m, int | float) else m for m in meanings}
    require(len(different) == 1, f"'{name}' is left out though it varies")
    said = any(name in note and "left out" in note for note in encoder.notes)
    require(said, f"'{name}' is left out without a word")


def _feature(sheet: Sheet, place: int, column: Column, encoded: Any, told: bool) -> None:
    meanings, name = sheet.meanings(place), column.name
    if isinstance(column, NumberColumn):
        others = [m for m in meanings if m is not None and not isinstance(m, int | float)]
        require(not others, f"'{name}' is taken for numbers in spite of {others[:3]}")
        _numbers(name, [_finite(m) for m in meanings], encoded)
        return
    texts = sheet.written(place)
    holes = [m is None for m in meanings]
    if sheet.text:
        expected = [column.most_frequent if h else t for t, h in zip(texts, holes, strict=True)]
        got = [column.levels[i] for i in encoded[:, : len(column.levels)].argmax(1)]
        require(got == expected, f"'{name}' has other levels than its cells")
        numbers = sum(type(m) in (int, float) and _finite(m) is not None for m in meanings)
        most = 2 * numbers > len(holes) - sum(holes)
        require(told or not most, f"'{name}' is taken for categories without a word")
    else:
        present = [row for row, hole in enumerate(holes) if not hole]
        codes = encoded.argmax(1).tolist()
        _same_groups(name, [_key(meanings[row]) for row in present], [codes[r] for r in present])
    require(set(encoded.sum(1)) <= {1.0, 2.0}, f"'{name}' is not one-hot")
    if column.indicator:
        require(encoded[:, -1].astype(bool).tolist() == holes, f"'{name}': holes are elsewhere")


def _same_groups(name: str, one: Sequence[Hashable], other: Sequence[Hashable]) -> None:
    pairs = len(set(zip(one, other, strict=True)))
    require(pairs == len(set(one)) == len(set(other)), f"'{name}': different values became one")


def _numbers(name: str, values: Sequence[float | None], encoded: Any) -> None:
    """Compares a standardised column with exact fractions."""
    drawn = drawn_in(values)
    expected, slack = standardised(drawn)
    if drawn is not values:
        expected = [z / math.sqrt(1.0 + (z / 5.0) ** 2) for z in expected]
    for got, z in zip(encoded[:, 0], expected, strict=True):
        near = abs(got - z) <= 1e-6 * (1.0 + abs(z)) + slack
        require(near, f"'{name}' is encoded as {got} instead of {z}")
    if encoded.shape[1] > 1:
        holes = [value is None for value in values]
        require(encoded[:, 1].astype(bool).tolist() == holes, f"'{name}': holes are elsewhere")


def drawn_in(values: Sequence[float | None]) -> Sequence[float | None]:
    """`asinh((x − median) / spread)` if some values are more than ten spreads out, by fractions.

    >>> drawn_in([0.0, 1.0, 2.0, 3.0, 4.0])
    [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> [round(z, 2) for z in drawn_in([0.0, 1.0, 2.0, 3.0, 1000.0, None])]
    [-1.11, -0.63, 0.0, 0.63, 7.21, 0.0]
    """
    exact = sorted(Fraction(value) for value in values if value is not None)
    low, median, high = (_quantile(exact, Fraction(quarter, 4)) for quarter in (1, 2, 3))
    distances = [abs(value - median) for value in exact]
    spread = (high - low) / Fraction(1.349) or sum(distances, Fraction()) / len(exact)
    if max(distances) <= 10 * spread:
        return values
    filled = [median if value is None else Fraction(value) for value in values]
    most = Fraction(1e300)
    return [math.asinh(max(-most, min(most, (value - median) / spread))) for value in filled]


def _quantile(ordered: Sequence[Fraction], share: Fraction) -> Fraction:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = ordered[min(below + 1, len(ordered) - 1)]
    return ordered[below] + (place - below) * (above - ordered[below])


def standardised(values: Sequence[float | None]) -> tuple[list[float], float]:
    """`(x − mean) / std` by fractions, with the median for missing values, and the tolerance.

    The tolerance bounds the accumulated rounding to 53 bits.

    >>> [round(z, 3) for z in standardised([1.0, 3.0, None])[0]]
    [-1.225, 1.225, 0.0]
    """
    exact = [None if value is None else Fraction(value) for value in values]
    median = statistics.median(value for value in exact if value is not None)
    filled = [median if value is None else value for value in exact]
    mean = sum(filled, Fraction()) / len(filled)
    variance = sum(((value - mean) ** 2 for value in filled), Fraction()) / len(filled)
    if variance == 0:
        return [0.0] * len(filled), 0.0
    signed = [math.copysign(math.sqrt((x - mean) ** 2 / variance), x - mean) for x in filled]
    largest = math.sqrt(max(x * x for x in filled) / variance)
    coarse = math.sqrt(Fraction(_STEP) ** 2 / variance)
    return signed, 4.0 * len(filled) * (_EPS * largest + coarse * max(map(abs, signed)))


def _targets(sheet: Sheet, place: int, table: Table, encoder: Encoder) -> None:
    meanings, cells = sheet.meanings(place), sheet.written(place)
    found = encoder.original_targets(table).flatten().tolist()
    if encoder.task.classification:
        classes = [encoder.classes[code] for code in found]
        if sheet.text:
            kinds = {bool if isinstance(m, bool) else str if isinstance(m, str) else float
                     for m in meanings}  # fmt: skip
            expected = meanings if kinds in ({bool}, {float}) else cells
            same = [_key(value) for value in classes] == [_key(value) for value in expected]
            require(same, f"the classes of '{encoder.target}' are others than the cells")
        else:
            keys = [[_key(value) for value in values] for values in (meanings, classes)]
            _same_groups(encoder.target, *keys)
        require(len(set(encoder.labels)) == len(encoder.classes), "two classes have one label")
        return
    numbers = [_finite(m) for m in meanings]
    require(found == numbers, f"the targets '{encoder.target}' are others than the cells")
    zs, slack = standardised(numbers)
    scaled = encoder.targets(table).double().flatten().tolist()
    near = (abs(a - z) <= 1e-6 * (1.0 + abs(z)) + slack
            for a, z in zip(scaled, zs, strict=True))  # fmt: skip
    require(all(near), f"the targets '{encoder.target}' are scaled wrongly")


def _finite(said: Any) -> float | None:
    return float(said) if said is not None and math.isfinite(said) else None


def _key(said: Any) -> Hashable:
    """The key of a cell: numbers by value, so 1 equals 1.0, but True is not 1."""
    if isinstance(said, float) and not math.isfinite(said):
        return None
    return (type(said) is bool, said) if isinstance(said, int | float) else str(said)


def alone(encoder: Encoder, whole: Table, some: Table, rows: Sequence[int]) -> None:
    """Checks that rows in a file of their own mean what they mean among others."""
    chosen = whole.rows(rows)
    same = torch.equal(encoder.transform(some), encoder.transform(chosen))
    require(same, "features mean something else in a file of their own")
    pair = [encoder.original_targets(table) for table in (some, chosen)]
    require(torch.equal(*pair), "targets mean something else in a file of their own")


def kept(encoder: Encoder, table: Table) -> None:
    """Checks that a saved encoder is the same."""
    again = Encoder.from_json(encoder.to_json())
    require(again == encoder, "the encoder comes back as another one")
    require(torch.equal(again.transform(table), encoder.transform(table)), "it encodes otherwise")
