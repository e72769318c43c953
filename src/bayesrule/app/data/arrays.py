"""Tables from npz files: X and y, or one array for each column. Nothing is ever unpickled."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data.errors import DataError, Faults, listing, printable, reason, require
from bayesrule.app.data.table import Table

Array = NDArray[Any]
# numpy reads headers as Python literals, so its errors include those of the tokenizer.
_DAMAGED = (
    ValueError, TypeError, zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError,
    NotImplementedError, SyntaxError, tokenize.TokenError, RecursionError, OverflowError,
)  # fmt: skip


def _load(path: Path, name: str) -> dict[str, Array]:
    try:
        # numpy leaves a file open that it fails to read, so it is opened (and closed) here.
        with path.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if not isinstance(content, np.ndarray):
                return _members(content, name)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"Cannot read '{name}': {reason(error)}.") from error
    except (*_DAMAGED, RuntimeError) as error:
        raise DataError(f"Cannot read '{name}' as npz: it is not an archive of arrays.") from error
    raise DataError(f"'{name}' is a single npy array. Save it with numpy.savez(path, X=, y=).")


def _members(content: Any, path: str) -> dict[str, Array]:
    arrays, faults = dict[str, Array](), Faults()
    for name in content.files:
        with faults.noted():
            arrays[name] = _member(content, name, path)
    faults.refuse()
    return arrays


def _member(content: Mapping[str, Array], name: str, path: str) -> Array:
    what = f"The array '{name}' in '{path}'"
    try:
        array = content[name]
    except MemoryError as error:
        raise DataError(f"{what} needs more memory than there is.") from error
    except RuntimeError as error:  # zipfile's, for a password
        raise DataError(f"{what} cannot be unpacked: {reason(error)}.") from error
    except _DAMAGED as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{what} holds Python objects, which are not read. Save it as numbers or as text "
                "(dtype=str)."
            ) from error
        raise DataError(f"{what} is damaged: {reason(error)}.") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"'{name}' in '{path}' is empty or not an array of numpy.")
    return array


def _columns(name: str, array: Array, path: str) -> dict[str, Array]:
    """Return one column for a 1-d array, and numbered columns for a 2-d array."""
    if array.dtype.kind not in "biufSUM":
        raise DataError(f"The array '{name}' in '{path}' is of type {array.dtype}, not a column.")
    if array.dtype.kind == "S":
        array = _decoded(name, array, path)
    longer = (
        array.dtype.kind == "f" and array.dtype.itemsize > 8
    )  # json and torch have no such type
    array = array.astype(np.float64 if longer else array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 1:
        return {name: array}
    if array.ndim == 2:
        return {f"{name}{i}": array[:, i] for i in range(array.shape[1])}
    raise DataError(f"The array '{name}' in '{path}' has shape {array.shape}, not (n,) or (n, d).")


def _decoded(name: str, array: Array, path: str) -> Array:
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"The array '{name}' in '{path}' holds bytes that are not text in UTF-8, such as "
            f"{error.object!r}. Save it as text (dtype=str)."
        ) from error


def _named_columns(arrays: dict[str, Array], path: str) -> tuple[dict[str, Array], list[str]]:
    """Return the columns, from X and y or from all 1-d arrays, and the names left out."""
    if "X" in arrays and "y" in arrays:
        x, y = arrays["X"], arrays["y"]
        x = x[:, None] if x.ndim == 1 else x
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        others = [name for name in arrays if name not in ("X", "y")]
        return {**_columns("x", x, path), **_columns("y", y, path)}, others
    if wide := [name for name, array in arrays.items() if array.ndim != 1]:
        raise DataError(
            f"'{path}' holds the arrays {listing(arrays)}. It must hold X (n, d) and y (n,), or "
            f"else one 1-d array for each column, which does not fit {listing(wide)}."
        )
    return {name: _columns(name, array, path)[name] for name, array in arrays.items()}, []


def read_npz(path: Path) -> Table:
    """Read the arrays of a file as columns."""
    pandas, name = require("pandas", "Working with tables"), printable(path)
    columns, others = _named_columns(_load(path, name), name)
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"'{column}' {length}" for column, length in list(lengths.items())[:8])
        raise DataError(f"The columns of '{name}' differ in length: {sizes}.")
    notes = (f"Only X and y are used; left out: {listing(others)}.",) if others else ()
    target = "y" if "X" not in columns and "x0" in columns and "y" in columns else None
    return Table(pandas.DataFrame(columns), name, target, notes)
