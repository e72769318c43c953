"""The exception for errors in data, and helpers for its messages."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class DataError(ValueError):
    """An error in the data or in its description that the caller can fix."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is closest to a mistyped one, or nothing.

    >>> nearest("yaht", ["boston", "yacht"])
    " Did you mean 'yacht'?"
    >>> nearest("qqq", ["boston", "yacht"])
    ''
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


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional package; a DataError names what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"{purpose} needs the package '{package}', which could not be imported ({error}). "
            "Install it with: pip install 'bayesrule[front]'"
        ) from error
