"""The exception for errors in data, and helpers for its messages."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType


class DataError(ValueError):
    """An error in the data or in its description that the caller can fix."""


class Faults:
    """Collects the faults of a table, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a DataError that is raised inside and continue after it."""
        try:
            yield
        except DataError as error:
            self.found.append(str(error))

    def refuse(self, most: int = 10) -> None:
        """Raise one DataError for all faults, if there are any; it lists the first `most`."""
        if len(self.found) == 1:
            raise DataError(self.found[0])
        if self.found:
            listed = "\n".join(f"({i}) {fault}" for i, fault in enumerate(self.found[:most], 1))
            left = len(self.found) - most
            more = f"\n... and {left} more." if left > 0 else ""
            raise DataError(f"There are {len(self.found)} faults.\n{listed}{more}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to a mistyped one, if any is close.

    >>> nearest("yaht", ["boston", "yacht"])
    " Did you mean 'yacht'?"
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def listing(names: Iterable[object], most: int = 12) -> str:
    """Join names for a message and cut a long list short.

    >>> listing(["a", "b", "c"], most=2)
    "'a', 'b', ... (3 in all)"
    """
    every = list(names)
    shown = ", ".join(repr(name) for name in every[:most])
    return shown if len(every) <= most else f"{shown}, ... ({len(every)} in all)"


def printable(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text that can be printed, whatever bytes its name has.

    >>> printable("caf\udce9.csv")
    'caf\\udce9.csv'
    """
    text = os.fspath(path)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def reason(error: BaseException) -> str:
    """Return the message of another library's error, on one line without its path."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__


def require(module: str, purpose: str, extra: str = "front") -> ModuleType:
    """Import an optional package; if it is missing, a DataError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"{purpose} needs the package '{package}', which could not be imported ({error}). "
            f"Install it with: pip install 'bayesrule[{extra}]'"
        ) from error
