"""Odd tables and the files that hold them: text, arrays and parquet, whole or damaged."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trust.hostile import cells
from benchmarks.trust.hostile.cells import Meaning

FORMATS = ("csv", "semicolon", "bars", "tsv", "npz", "parquet")
_SEPARATORS = {"csv": ",", "semicolon": ";", "bars": "|", "tsv": "\t"}
_NAMES = (
    *("a", "b", "c", "A", "x0", "y", "id", "price", "Größe", "日本", "a,b", "a;b", "a|b;c|d"),
    *('"', "'", "=cmd", "-1", "+x", "--json", "mean", "std", "entropy", "p(x)", "Unnamed", "1"),
    *("2020", "0.5", "True", "nan", "a is missing", "a=x", "%s", "{x}", "\\", "x" * 300, "<b>"),
    *("line\nend", "tab\tin", "predicted_a", "lower_0.9", "__index_level_0__x", "X", "row number"),
)  # fmt: skip
_ODD_NAMES = ("", " ", "a", "bell\x07", " a", "a ")


@dataclass(frozen=True)
class Sheet:
    """Named columns, their cells as texts or as values, and how the file is written.

    A `plain` one has nothing odd, and must not be refused.
    """

    names: tuple[str, ...]
    columns: tuple[Sequence[Any], ...]
    format: str
    types: tuple[str, ...] = ()
    line_end: str = "\n"
    quote_all: bool = False
    decimal: str = "."
    zipped: bool = False
    matrix: bool = False
    blank_lines: bool = False
    plain: bool = False

    @property
    def text(self) -> bool:
        """Whether the file holds text, which has to be read cell by cell."""
        return self.format in _SEPARATORS

    @property
    def known_as(self) -> list[str]:
        """The names that readers give the columns: in text, surrounding spaces do not count."""
        return [name.strip() if self.text else name for name in self.names]

    @property
    def ending(self) -> str:
        """The ending of the file's name."""
        plain = {"semicolon": "csv", "bars": "csv"}.get(self.format, self.format)
        return plain + ".gz" * self.zipped

    def some(self, rows: Sequence[int], order: Sequence[int]) -> Sheet:
        """The same table with only these rows, and its columns in another order."""
        chosen = [[self.columns[i][row] for row in rows] for i in order]
        types = tuple(self.types[i] for i in order) if self.types else ()
        names = tuple(self.names[i] for i in order)
        matrix = self.matrix and len(order) == len(self.names)
        return replace(self, names=names, columns=tuple(chosen), types=types, matrix=matrix)

    def written(self, place: int) -> list[Any]:
        """A column's cells as the file has them; None for missing values in a binary file."""
        if self.text:
            return [self._spelled(cell) for cell in self.columns[place]]
        if self.format == "npz":
            values = np.array(self.columns[place], dtype=self.types[place]).tolist()
            values = [v.decode() if isinstance(v, bytes) else v for v in values]
            if self.types[place] == "longdouble":
                values = list(map(float, values))
        else:
            array = _arrow(self.columns[place], self.types[place])
            # Python has no such time zone.
            values = (
                array.cast("int64") if self.types[place] == "timestamp" else array
            ).to_pylist()
        return [None if value != value else value for value in values]

    def meanings(self, place: int) -> list[Meaning]:
        """The meanings of a column's cells."""
        if self.text:
            return [cells.meaning(cell, self.decimal) for cell in self.written(place)]
        return [float(v) if isinstance(v, Decimal) else v for v in self.written(place)]

    def _spelled(self, cell: str) -> str:
        kept = cell if self._quoted(cell) else cell.lstrip(" ")
        return kept.replace("\r\n", "\n").replace("\r", "\n")

    def _quoted(self, cell: str) -> bool:
        return self.quote_all or any(c in cell for c in (_SEPARATORS[self.format], '"', "\n", "\r"))

    def _field(self, cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"' if self._quoted(cell) else cell

    def as_text(self) -> str:
        """The table as the text of a file."""
        rows = [self.names, *zip(*self.columns, strict=True)]
        lines = [_SEPARATORS[self.format].join(map(self._field, row)) for row in rows]
        between = 2 * self.line_end if self.blank_lines else self.line_end
        return between.join(lines) + self.line_end

    def write(self, path: Path) -> Path:
        """Writes the file."""
        if self.text:
            raw = self.as_text().encode()
            path.write_bytes(gzip.compress(raw, 1) if self.zipped else raw)
        elif self.format == "npz":
            self._write_arrays(path)
        else:
            self._write_parquet(path)
        return path

    def _write_arrays(self, path: Path) -> None:
        pairs = zip(self.names, self.columns, self.types, strict=True)
        arrays = {name: np.array(values, dtype=kind) for name, values, kind in pairs}
        if self.matrix:
            y = arrays.pop("y")
            arrays = {"X": np.column_stack([arrays[f"x{i}"] for i in range(len(arrays))]), "y": y}
        with path.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]

    def _write_parquet(self, path: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        pairs = zip(self.columns, self.types, strict=True)
        arrays = [_arrow(values, kind) for values, kind in pairs]
        parquet.write_table(pyarrow.table(arrays, names=list(self.names)), path)


def _arrow(values: Sequence[Any], kind: str) -> Any:
    import pyarrow

    special = {
        "list": pyarrow.list_(pyarrow.int64()),
        "decimal": pyarrow.decimal128(20, 4),
        "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "timestamp": pyarrow.timestamp("us", tz="Mars/Olympus"),
    }
    return pyarrow.array(values, type=special.get(kind) or pyarrow.type_for_alias(kind))


# --- drawing --------------------------------------------------------------------------------------


def draw(chance: random.Random) -> Sheet:
    """A table: mostly small, sometimes without rows, long or wide."""
    format = chance.choices(FORMATS, (30, 15, 5, 15, 17, 18))[0]
    rows = chance.choices((0, 1, 2, 300, chance.randint(3, 12), chance.randint(13, 60)),
                          (1, 3, 4, 2, 30, 60))[0]  # fmt: skip
    width = chance.choices((1, 200, chance.randint(2, 6)), (2, 1, 97))[0]
    if chance.random() < 0.1:
        return _plain(chance, format)
    names = _names(chance, width)
    if format not in _SEPARATORS:
        return _typed(chance, names, rows, format)
    columns = tuple(cells.column(chance, rows) for _ in names)
    sheet = Sheet(names, columns, format, line_end=chance.choice(("\n", "\n", "\r\n", "\r")))
    if format != "csv" and chance.random() < 0.3:
        sheet = _with_commas(sheet)
    quoted, zipped, blank = (chance.random() < share for share in (0.3, 0.1, 0.05))
    return replace(sheet, quote_all=quoted, zipped=zipped, blank_lines=blank)


def _plain(chance: random.Random, format: str) -> Sheet:
    """Three columns of numbers and one of words, in good order."""
    rows, text = range(chance.randint(12, 60)), format in _SEPARATORS
    numbers = [[round(chance.gauss(50.0, 20.0), 3) for _ in rows] for _ in range(3)]
    words = [chance.choice(("red", "green", "blue")) for _ in rows]
    columns = [[str(cell) for cell in column] if text else column for column in numbers]
    word = "str" if format == "npz" else "string"
    types = () if text else ("float64", "float64", "float64", word)
    return Sheet(("a", "b", "c", "word"), (*columns, words), format, types, plain=True)


def _with_commas(sheet: Sheet) -> Sheet:
    """Fractions written with decimal commas."""
    columns = [
        [c.replace(".", ",") if isinstance(cells.meaning(c), float) else c for c in column]
        for column in sheet.columns
    ]
    return replace(sheet, columns=tuple(columns), decimal=",")


def _names(chance: random.Random, width: int) -> tuple[str, ...]:
    if width > len(_NAMES):
        return tuple(f"c{i}" for i in range(width))
    names = chance.sample(_NAMES, width)
    if chance.random() < 0.06:
        names[chance.randrange(width)] = chance.choice(_ODD_NAMES)
    return tuple(names)


_BIG = 2**53
_VALUES: dict[str, Any] = {
    "float64": lambda c: c.gauss(0.0, 1.0) * c.choice((1e-300, 1.0, 1.0, 1e200)),
    "float32": lambda c: c.gauss(5.0, 1.0),
    "float16": lambda c: c.choice((0.5, 1.0, 2.0, 60000.0)),
    ">f8": lambda c: c.gauss(0.0, 1e6),
    "longdouble": lambda c: c.choice((1.0, 2.0, 0.1)),
    "int64": lambda c: c.choice((_BIG, _BIG + 1, -_BIG - 1, 3)),
    "int32": lambda c: c.randint(-5, 5),
    ">i2": lambda c: c.randint(0, 3),
    "uint64": lambda c: c.choice((2**64 - 1, 2**64 - 2, 2**63, 1)),
    "uint8": lambda c: c.randint(0, 1),
    "bool": lambda c: c.random() < 0.5,
    "str": lambda c: c.choice(("red", "green", "1", "1.0", "01", "é", "NA", "=x", "True", "5%")),
    "string": lambda c: c.choice(("red", "green", "1", "1.0", "01", "é", "NA", "", "True", "5%")),
    "S9": lambda c: c.choice((b"red", b"blue", b"1", b"01")),
    "object": lambda c: c.choice((1, "x", None)),
    "complex128": lambda c: complex(c.random(), 1.0),
    "datetime64[s]": lambda c: f"20{c.randint(10, 99)}-01-01",
    "timedelta64[s]": lambda c: c.randint(0, 9),
    "large_string": lambda c: c.choice(("red", "\ufeff", "x" * 300)),
    "dictionary": lambda c: c.choice(("red", "green")),
    "decimal": lambda c: Decimal(c.randint(-9999, 9999)) / 100,
    "date32": lambda c: date(c.randint(1, 9999), 1, 2),
    "timestamp": lambda c: c.randint(-(10**15), 10**15),
    "list": lambda c: [1, c.randint(2, 3)],
    "binary": lambda c: c.choice((b"\xff", b"ok")),
}
_ARRAYS = ("float64",) * 6 + ("float32", "float16", ">f8", "longdouble", "int64", "int32", ">i2",
    "uint64", "uint8", "bool", "str", "str", "S9", "object", "complex128", "datetime64[s]",
    "timedelta64[s]")  # fmt: skip
_PARQUET = ("float64",) * 6 + ("float32", "float16", "int64", "int64", "int32", "uint64", "uint8",
    "bool", "string", "string", "large_string", "dictionary", "decimal", "date32", "timestamp",
    "list", "binary")  # fmt: skip
_MAY_BE_NAN = ("float64", "float32", "float16", ">f8")


def _typed(chance: random.Random, names: tuple[str, ...], rows: int, format: str) -> Sheet:
    types = tuple(chance.choice(_ARRAYS if format == "npz" else _PARQUET) for _ in names)
    columns = []
    for kind in types:
        column = [_VALUES[kind](chance) for _ in range(rows)]
        holes = 0.2 if chance.random() < 0.25 else 0.0
        nothing = float("nan") if format == "npz" else None
        if format == "parquet" or kind in _MAY_BE_NAN:
            column = [nothing if chance.random() < holes else value for value in column]
        columns.append(column)
    if format == "npz":
        taken = ("X", "x0", "y", *_ODD_NAMES)  # names that mean something, and those that repeat
        names = tuple(f"m{i}" if name in taken else name for i, name in enumerate(names))
    matrix = format == "npz" and len(names) > 1 and set(types) == {"float64"}
    if matrix:
        names = (*(f"x{i}" for i in range(len(names) - 1)), "y")
    return Sheet(names, tuple(columns), format, types, matrix=matrix)


# --- damage ---------------------------------------------------------------------------------------


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """The bytes of a file after an accident: cut, flipped, in another encoding, or not a table."""
    place = chance.randrange(len(raw) + 1)
    kind = chance.randrange(7)
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]
    if kind == 2:
        return raw[:place] + b"\0" + raw[place:]
    if kind == 3:
        return raw.decode("utf-8", "replace").encode("utf-16")
    if kind == 4:
        return raw.decode("utf-8", "replace").encode("latin-1", "replace")
    if kind == 5:
        return chance.choice(
            (b"", b"\n", b"\xef\xbb\xbf", b'"', b"PK\x03\x04", b"PAR1", b",", b"a")
        )
    return raw[:place] + raw[chance.randrange(len(raw) + 1) :]
