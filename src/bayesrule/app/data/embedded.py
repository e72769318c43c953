"""Tables that need no file (scikit-learn's own sets), and `open_table` for any path or name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bayesrule.app.data.errors import DataError, listing, nearest, require
from bayesrule.app.data.files import READERS, read_table
from bayesrule.app.data.table import Table
from bayesrule.app.data.uci import UCI, is_uci, uci_arrays, uci_set


@dataclass(frozen=True)
class EmbeddedSet:
    """A set inside scikit-learn: its target column and what it is about."""

    name: str
    target: str
    about: str


EMBEDDED: Mapping[str, EmbeddedSet] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            EmbeddedSet("diabetes", "progression", "progression of diabetes after one year"),
            EmbeddedSet("breast_cancer", "diagnosis", "malignant or benign tumours"),
            EmbeddedSet("wine", "cultivar", "three cultivars of Italian wine"),
            EmbeddedSet("iris", "species", "three species of iris"),
            EmbeddedSet("digits", "digit", "handwritten digits, 8 x 8 pixels"),
        )
    }
)
"""The sets that need no download; the first is the default."""
DEFAULT = "diabetes"


def embedded(name: str | None = None) -> Table:
    """Return one of scikit-learn's own sets as a table, by default diabetes."""
    name = DEFAULT if name is None else name
    if name not in EMBEDDED:
        raise DataError(
            f"No embedded set '{name}'.{nearest(name, EMBEDDED)} There are {listing(EMBEDDED)}."
        )
    entry = EMBEDDED[name]
    datasets = require("sklearn.datasets", "The embedded sets")
    require("pandas", "The embedded sets")
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    frame = bunch.data.copy()
    frame[entry.target] = bunch.target
    if name in ("breast_cancer", "wine", "iris"):
        labels = [str(label) for label in bunch.target_names]
        frame[entry.target] = [labels[code] for code in bunch.target]
    return Table(frame, name, entry.target)


def uci_table(name: str) -> Table:
    """Return all rows of a UCI set as a table with columns x0, x1, ... and the target y."""
    pandas = require("pandas", "Working with tables")
    x, y = uci_arrays(name)
    columns = {f"x{i}": x[:, i] for i in range(x.shape[1])} | {"y": y}
    return Table(pandas.DataFrame(columns), uci_set(name).name, "y")


def open_table(source: str | os.PathLike[str] | None = None) -> Table:
    """Return a table by path or name.

    Nothing means the default embedded set; then an existing file, an embedded set and a UCI set
    are tried in this order, so that ``wine`` is scikit-learn's and ``wine_red`` UCI's.
    """
    if source is None:
        return embedded()
    name = os.fspath(source)
    path = Path(name).expanduser()
    # A folder that happens to be called 'iris' does not hide the set.
    if not path.is_file() and name in EMBEDDED:
        return embedded(name)
    if not path.is_file() and is_uci(name):
        return uci_table(name)
    if path.exists() or name.lower().endswith(tuple(READERS)) or os.sep in name:
        return read_table(path)
    raise DataError(
        f"'{name}' is neither a file nor a known set.{nearest(name, [*EMBEDDED, *UCI])} "
        f"Embedded sets: {listing(EMBEDDED)}. UCI sets: {listing(UCI)}. "
        f"Files end in {', '.join(READERS)}."
    )
