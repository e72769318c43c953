"""Where tables come from: csv, tsv, parquet and npz files, and scikit-learn's data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.data.arrays import read_npz
from bayesrule.app.data.delimited import read_delimited
from bayesrule.app.data.errors import (
    DataError,
    Faults,
    listing,
    nearest,
    printable,
    reason,
    require,
)
from bayesrule.app.data.table import Table, refuse_repeats

EMBEDDED = {
    "diabetes": "progression",
    "breast_cancer": "diagnosis",
    "wine": "cultivar",
    "iris": "species",
    "digits": "digit",
    "friedman": "response",
}
"""The data sets inside scikit-learn, each with its target column; the first is the default."""

# The column names under which pandas saves row names.
_INDEX = re.compile(r"__index_level_[0-9]+__")


def _read_parquet(path: Path) -> Table:
    pandas = require("pandas", "Reading parquet files")
    parquet, name = require("pyarrow.parquet", "Reading parquet files"), printable(path)
    try:
        # Read as one file: a path such as year=2020/x.parquet must not grow columns.
        content = parquet.ParquetFile(path).read()
    # pyarrow's own errors are ValueError, KeyError, TypeError, NotImplementedError and OSError.
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError, MemoryError) as error:
        raise DataError(f"Cannot read '{name}' as parquet: {reason(error)}.") from error
    refuse_repeats(content.column_names, name)
    faults, columns = Faults(), {}
    for column in content.column_names:
        if not _INDEX.fullmatch(column):
            with faults.noted():
                columns[column] = _column(content[column], column, name)
    faults.refuse()
    return Table(pandas.DataFrame(columns), name)


def _column(values: Any, column: str, name: str) -> Any:
    """One column for pandas; times lose an unknown zone, other types it lacks become text."""
    pyarrow = require("pyarrow", "Reading parquet files")
    casts = (
        lambda: values,
        lambda: values.cast(pyarrow.timestamp("us")),
        lambda: values.cast("string"),
    )
    for cast in casts:
        with suppress(ValueError, KeyError, TypeError, NotImplementedError, OverflowError):
            # Next to missing cells whole numbers would become floats, which keep fewer digits.
            return cast().to_pandas(integer_object_nulls=True)
    raise DataError(
        f"Column '{column}' of '{name}' has the type {values.type}, which cannot be read. Save it "
        "as numbers or as text, or save the file without it."
    )


_READ_TABS = partial(read_delimited, separators=("\t",))
READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": read_delimited,
    ".csv.gz": read_delimited,
    ".tsv": _READ_TABS,
    ".tsv.gz": _READ_TABS,
    ".parquet": _read_parquet,
    ".npz": read_npz,
}


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a csv, tsv, parquet or npz file; the ending says which.

    An npz file holds ``X`` (n, d) and ``y`` (n,), which become columns x0, x1, ... and y, or one
    1-d array for each column. Nothing is ever unpickled.
    """
    file = Path(os.path.expanduser(path))
    ending = next((end for end in READERS if file.name.lower().endswith(end)), None)
    _refuse_no_file(file)
    if ending is None:
        raise DataError(
            f"'{printable(file)}' is not of a kind that can be read. "
            f"Known endings: {', '.join(READERS)}."
        )
    if file.stat().st_size == 0:
        raise DataError(f"'{printable(file)}' is empty.")
    table = READERS[ending](file)
    if len(table) == 0 or not table.columns:
        raise DataError(f"'{table.name}' has {len(table)} rows and {len(table.columns)} columns.")
    return table


def _refuse_no_file(file: Path) -> None:
    """Raise if there is no plain file, and say what is there instead."""
    name = printable(file)
    try:
        if file.is_file():
            return
        if file.is_dir():
            raise DataError(f"'{name}' is a folder. Name one file in it.")
        if file.exists():
            raise DataError(f"'{name}' is a pipe or a device. Save it as a file first.")
        if file.is_symlink():
            to = printable(file.readlink())
            raise DataError(f"'{name}' is a link to '{to}', which does not exist.")
        siblings = sorted(os.listdir(file.parent)) if file.parent.is_dir() else []
    except OSError as error:
        raise DataError(f"Cannot read '{name}': {reason(error)}.") from error
    similar = nearest(printable(file.name), map(printable, siblings))
    raise DataError(f"There is no file '{name}'.{similar}")


def embedded(name: str = "diabetes") -> Table:
    """Return one of scikit-learn's data sets as a table."""
    if name not in EMBEDDED:
        raise DataError(
            f"No embedded set '{name}'.{nearest(name, EMBEDDED)} There are {listing(EMBEDDED)}."
        )
    datasets = require("sklearn.datasets", "The embedded sets")
    require("pandas", "The embedded sets")
    if name == "friedman":
        return _friedman(datasets)
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    frame, target = bunch.data.copy(), EMBEDDED[name]
    frame[target] = bunch.target
    if name in ("breast_cancer", "wine", "iris"):
        frame[target] = [str(bunch.target_names[code]) for code in bunch.target]
    return Table(frame, name, target)


def _friedman(datasets: Any) -> Table:
    """2,000 rows of `10 sin(πx₁x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅` with noise; Friedman (1991)."""
    pandas = require("pandas", "The embedded sets")
    x, y = datasets.make_friedman1(2000, n_features=5, noise=1.0, random_state=0)
    frame = pandas.DataFrame({f"x{i + 1}": x[:, i] for i in range(5)})
    return Table(frame.assign(response=y), "friedman", "response")


def open_table(source: str | os.PathLike[str] | None = None) -> Table:
    """Return a table by its path or the name of an embedded set; by default diabetes."""
    if source is None:
        return embedded()
    name = os.fspath(source)
    # A folder that happens to be called 'iris' does not hide the set.
    if name in EMBEDDED and not os.path.isfile(name):
        return embedded(name)
    if os.path.lexists(name) or name.lower().endswith(tuple(READERS)) or os.sep in name:
        return read_table(name)
    name = printable(name)
    raise DataError(
        f"'{name}' is neither a file nor an embedded set.{nearest(name, EMBEDDED)} Embedded sets: "
        f"{listing(EMBEDDED)}. Files end in {', '.join(READERS)}. The UCI sets of the benchmarks "
        f"become files, in a checkout, by: python -m benchmarks table {name} --out {name}.csv"
    )
