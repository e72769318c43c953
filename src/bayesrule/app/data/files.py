"""Read a user's own table: csv, tsv, parquet or npz."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data.delimited import read_delimited
from bayesrule.app.data.errors import DataError, listing, nearest, require
from bayesrule.app.data.table import Table, refuse_repeats

Array = NDArray[Any]


def _read_tabs(path: Path) -> Table:
    return read_delimited(path, ("\t",))


def _read_parquet(path: Path) -> Table:
    require("pandas", "Reading parquet files")
    pyarrow = require("pyarrow", "Reading parquet files")
    parquet = require("pyarrow.parquet", "Reading parquet files")
    try:
        # Read as one file: a path such as year=2020/x.parquet must not grow columns.
        content = parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"Cannot read '{path}' as parquet: {reason}") from error
    refuse_repeats(content.column_names, str(path))
    index = [name for name in content.column_names if name.startswith("__index_level_")]
    frame = content.drop_columns(index).to_pandas(ignore_metadata=True)
    return Table(frame, str(path))


def _load_arrays(path: Path) -> dict[str, Array]:
    try:
        # numpy leaves a file open that it fails to read, so the opening is done here.
        with path.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if not isinstance(content, np.ndarray):
                return {name: _member(content, name, path) for name in content.files}
    except DataError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"Cannot read '{path}' as npz: it is not an archive of arrays.") from error
    raise DataError(f"'{path}' is a single npy array. Save it with numpy.savez(path, X=, y=).")


def _member(content: Mapping[str, Array], name: str, path: Path) -> Array:
    try:
        return content[name]
    except ValueError as error:
        raise DataError(
            f"The array '{name}' in '{path}' holds Python objects, which are not read. "
            "Save it as numbers or as text (dtype=str)."
        ) from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise DataError(f"The array '{name}' in '{path}' is damaged: {error}") from error


def _columns(name: str, array: Array, path: Path) -> dict[str, Array]:
    """Return one column for a 1-d array, and numbered ones for a 2-d array of several."""
    if array.dtype.kind not in "biufSUM":
        raise DataError(f"The array '{name}' in '{path}' is of type {array.dtype}, not a column.")
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.ndim == 1:
        return {name: array}
    if array.ndim == 2:
        return {f"{name}{i}": array[:, i] for i in range(array.shape[1])}
    raise DataError(f"The array '{name}' in '{path}' has shape {array.shape}, not (n,) or (n, d).")


def _named_columns(arrays: dict[str, Array], path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the columns and the arrays left out: X and y, or else every array one column."""
    if "X" in arrays and "y" in arrays:
        x, y = arrays["X"], arrays["y"]
        x = x[:, None] if x.ndim == 1 else x
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        others = [name for name in arrays if name not in ("X", "y")]
        return {**_columns("x", x, path), **_columns("y", y, path)}, others
    if wide := [name for name, array in arrays.items() if array.ndim != 1]:
        raise DataError(
            f"'{path}' holds the arrays {listing(arrays)}. Either two arrays X (n, d) and y (n,) "
            f"are taken, or one 1-d array for each column, which does not fit {listing(wide)}."
        )
    columns = {
        key: column for name in arrays for key, column in _columns(name, arrays[name], path).items()
    }
    return columns, []


def _read_npz(path: Path) -> Table:
    pandas = require("pandas", "Working with tables")
    columns, others = _named_columns(_load_arrays(path), path)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"'{name}' {length}" for name, length in list(lengths.items())[:8])
        raise DataError(f"The columns of '{path}' differ in length: {sizes}.")
    notes = (f"Only X and y are used; left out: {listing(others)}.",) if others else ()
    target = "y" if "X" not in columns and "x0" in columns and "y" in columns else None
    return Table(pandas.DataFrame(columns), str(path), target, notes)


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": read_delimited,
    ".csv.gz": read_delimited,
    ".tsv": _read_tabs,
    ".tsv.gz": _read_tabs,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
}


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise DataError(f"'{path}' is a folder. Name one file in it.")
    siblings = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
    raise DataError(f"There is no file '{path}'.{nearest(path.name, siblings)}")


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a csv, tsv, parquet or npz file; the ending says which.

    An npz file holds ``X`` (n, d) and ``y`` (n,), which become columns x0, x1, ... and y, or one
    1-d array for each column. Nothing is ever unpickled.
    """
    file = Path(path).expanduser()
    endings = sorted(READERS, key=len, reverse=True)
    ending = next((end for end in endings if file.name.lower().endswith(end)), None)
    _existing(file)
    if ending is None:
        raise DataError(
            f"'{file}' is not of a kind that can be read. Known endings: {', '.join(READERS)}."
        )
    if file.stat().st_size == 0:
        raise DataError(f"'{file}' is empty.")
    table = READERS[ending](file)
    if len(table) == 0 or not table.columns:
        raise DataError(f"'{file}' has {len(table)} rows and {len(table.columns)} columns.")
    return table
