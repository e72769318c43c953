"""Arrays, tensors and frames as tensors of finite numbers; errors name the row and column."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

_AT_ONCE = 1 << 16


def matrix(
    x: Any, name: str = "x", *, rows: int = 1, columns: int | None = None, missing: bool = False
) -> Tensor:
    """A table (n, d) of numbers: an array, a tensor, a list of lists or a pandas frame.

    Tensors of floats keep their type and device, all else becomes float64. NaN is refused, unless
    values may be `missing`.
    """
    names = [str(column) for column in x.columns] if hasattr(x, "columns") else None
    table = _floats(x, name)
    if table.ndim != 2:
        raise ValueError(
            f"{name} is a table (rows, columns); got the shape {tuple(table.shape)}."
            + (" One column of numbers is x[:, None]." if table.ndim == 1 else "")
        )
    _check_size(table, name, rows, columns)
    _check_finite(table, name, names, missing)
    return table


def vector(y: Any, name: str = "y", *, rows: int, missing: bool = False) -> Tensor:
    """One number for each row, (n,); a column (n, 1) counts as one."""
    values = _floats(y, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (rows,):
        raise ValueError(
            f"{name} has one number for each of {rows} rows; got {tuple(values.shape)}."
        )
    _check_finite(values.unsqueeze(1), name, None, missing)
    return values


def _floats(x: Any, name: str) -> Tensor:
    tensor = x.detach() if isinstance(x, Tensor) else _shared(_array(x, name))
    return tensor if tensor.is_floating_point() else tensor.double()


def _array(x: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(
            x.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(x, "to_numpy") else x
        )
        kept = array.dtype in (np.float32, np.float64)
        array = array if kept else array.astype(np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"{name} holds something that is not a number: {problem}. Turn words and dates into "
            "numbers first."
        ) from problem
    # torch cannot share arrays with negative strides.
    return array if min(array.strides, default=0) >= 0 else array.copy()


def _shared(array: np.ndarray) -> Tensor:
    """A tensor of the same memory, or of the same file where an array is mapped from one."""
    with warnings.catch_warnings():
        # Tables are never written to, so they may be read-only.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.as_tensor(array)


def _check_size(x: Tensor, name: str, rows: int, columns: int | None) -> None:
    if len(x) < rows:
        raise ValueError(f"{name} has {len(x)} rows; at least {rows} are needed.")
    if x.shape[1] == 0:
        raise ValueError(f"{name} has no columns.")
    if columns is not None and x.shape[1] != columns:
        raise ValueError(f"{name} has {x.shape[1]} columns; the model was fitted to {columns}.")


def _check_finite(x: Tensor, name: str, names: list[str] | None, missing: bool) -> None:
    # Squares of larger numbers, and their sums, overflow.
    most = torch.finfo(x.dtype).max ** (1 / 3)
    for start in range(0, len(x), _AT_ONCE):
        part = x[start : start + _AT_ONCE]
        bad = part.abs() > most if missing else ~(part.abs() <= most)
        if bad.any():
            row, column = (int(one) for one in bad.nonzero()[0])
            where = f"column {names[column]!r}" if names else f"column {column}"
            value = float(part[row, column])
            what = "is too large" if math.isfinite(value) else "is not finite"
            way = "" if missing else " Drop or fill such rows first."
            raise ValueError(f"{name} {what} at row {start + row}, {where}: {value}.{way}")


def column(x: Any) -> Any:
    """Numbers (n,) as a table of one column; tables as they are."""
    if isinstance(x, list | tuple):
        x = np.asarray(x)
    if hasattr(x, "to_frame"):
        return x.to_frame()
    return x[:, None] if getattr(x, "ndim", 0) == 1 else x


def brief(row: Tensor) -> str:
    """A few numbers of a vector, for `repr`."""
    more = ", …" if len(row) > 6 else ""
    return "(" + ", ".join(f"{one:.4g}" for one in row[:6].tolist()) + more + ")"
