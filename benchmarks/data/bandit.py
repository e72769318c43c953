"""The three data sets of contextual bandits: mushrooms, the space shuttle and incomes."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.cache import find, not_found, read_unpacked, verify

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

_SUMS = {
    "mushroom.npz": "d00e1baaf66da3be7209427a23e2088935ee7cf18add2e20dc3f8d3ee7fcf832",
    "shuttle.npz": "043b64a870da61376dd4176c4c2a2193b7a1f5c9e246aa3dd6c81c14c11592ab",
    "adult_train.csv.xz": "1a26c887f4b7b4b4e0f99750aca36e24a777e32b8f3a51118d33048407422670",
}
# Of the 14 columns of the census data: the numeric ones, and the one used as the class.
_NUMBERS, _OCCUPATION = (0, 2, 4, 10, 11, 12), 6


def mushroom() -> tuple[Floats, Numbers]:
    """Contexts (8124, 117), the categories one-hot, and 1 for poisonous mushrooms."""
    arrays = _arrays("mushroom.npz")
    return arrays["X"].astype(np.float32), arrays["y"].astype(np.int64)


def shuttle() -> tuple[Floats, Numbers]:
    """Contexts (43500, 9), standardised, and the state of the shuttle, 0 to 6 (statlog)."""
    arrays = _arrays("shuttle.npz")
    return _standardised(arrays["X_train"].astype(np.float64)), arrays["y_train"].astype(np.int64)


def adult() -> tuple[Floats, Numbers]:
    """Contexts of the census data, numbers standardised and categories one-hot, and occupations.

    Rows without an occupation are left out; there are 14 others.
    """
    text = read_unpacked(_verified("adult_train.csv.xz")).decode()
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row]
    rows = [row for row in rows if row[_OCCUPATION] != "?"]
    columns = list(zip(*rows, strict=True))
    numbers = np.array([columns[i] for i in _NUMBERS], dtype=np.float64).T
    kinds = [i for i in range(len(columns)) if i not in (*_NUMBERS, _OCCUPATION)]
    parts = [_standardised(numbers), *(_one_hot(columns[i]) for i in kinds)]
    return np.concatenate(parts, 1), np.unique(columns[_OCCUPATION], return_inverse=True)[1]


def _one_hot(column: tuple[str, ...]) -> Floats:
    names, codes = np.unique(column, return_inverse=True)
    return np.eye(len(names), dtype=np.float32)[codes]


def _standardised(x: NDArray[np.float64]) -> Floats:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def _arrays(name: str) -> dict[str, NDArray[Any]]:
    with np.load(_verified(name), allow_pickle=False) as file:
        return {key: file[key] for key in ("X", "y", "X_train", "y_train") if key in file.files}


def _verified(name: str) -> Any:
    path = find(f"bandit/{name}")
    if path is None:
        raise not_found(f"bandit/{name}", "there is no address for it")
    verify(path, _SUMS[name])
    return path
