"""Models on disk: one safetensors file with the options as json; nothing is unpickled."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError, Place

_IS = "is"


def write(path: Place, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Writes tensors and facts that json can hold, atomically: the old file or the new one."""
    checkpoint.write_atomically(Path(path), checkpoint.payload(dict(tensors), **facts))  # type: ignore[arg-type]


def read(path: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file."""
    tensors, metadata = checkpoint.read(Path(path))
    return tensors, metadata["facts"]


def not_a(path: Place, found: object, wanted: str) -> CheckpointError:
    """The error for a file that holds something else."""
    return CheckpointError(f"{path} holds {found or 'no graphical model'}, not a {wanted}.")


@contextlib.contextmanager
def whole(path: Place) -> Iterator[None]:
    """Around code that reads a file: errors of missing content say that it is damaged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise checkpoint.damaged(path, f"{type(problem).__name__}: {problem}") from problem


def encoded(value: Any) -> Any:
    """An option as json: a dataclass by its class and fields, the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        held = {f.name: encoded(getattr(value, f.name)) for f in fields(value) if f.init}
        return {_IS: f"{type(value).__module__}:{type(value).__qualname__}", **held}
    if isinstance(value, tuple | list):
        return [encoded(item) for item in value]
    json.dumps(value)  # raises for values that json cannot hold
    return value


def decoded(value: Any) -> Any:
    """The option that `encoded` wrote; only dataclasses of the library are built."""
    if isinstance(value, list):
        return tuple(decoded(item) for item in value)
    if not isinstance(value, dict):
        return value
    held = {name: decoded(item) for name, item in value.items() if name != _IS}
    return _kind(value[_IS])(**held) if _IS in value else held


def _kind(name: str) -> type:
    module, _, wanted = str(name).partition(":")
    kind = getattr(_module(module), wanted, None)
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module):
        raise CheckpointError(f"The file names an option {name!r} that the library does not have.")
    return cast(type, kind)


def _module(name: str) -> object:
    """A module of the library; None for any other name."""
    try:
        return importlib.import_module(name) if name.startswith("bayesrule.") else None
    except ImportError:
        return None
