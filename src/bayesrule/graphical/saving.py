"""Models on disk: one safetensors file with their options as json, never unpickled."""

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
    """Writes tensors and json-able facts; the name holds the old file or the new one."""
    checkpoint.write_atomically(Path(path), checkpoint.payload(dict(tensors), **facts))  # type: ignore[arg-type]


def read(path: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file."""
    tensors, metadata = checkpoint.read(Path(path))
    return tensors, metadata["facts"]


def not_a(path: Place, found: object, wanted: str) -> CheckpointError:
    """What is said of a file that holds something else."""
    return CheckpointError(f"{path} holds {found or 'no graphical model'}, not a {wanted}.")


@contextlib.contextmanager
def whole(path: Place) -> Iterator[None]:
    """Around code that files make raise of which something is missing."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise checkpoint.damaged(path, f"{type(problem).__name__}: {problem}") from problem


def encoded(value: Any) -> Any:
    """An option as json: a dataclass by its class and fields, the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        held = {one.name: encoded(getattr(value, one.name)) for one in fields(value) if one.init}
        return {_IS: f"{type(value).__module__}:{type(value).__qualname__}", **held}
    if isinstance(value, tuple | list):
        return [encoded(one) for one in value]
    json.dumps(value)  # refuses here what a file could not hold
    return value


def decoded(value: Any) -> Any:
    """The option that `encoded` wrote; classes of the library alone are built."""
    if isinstance(value, list):
        return tuple(decoded(one) for one in value)
    if not isinstance(value, dict):
        return value
    held = {name: decoded(one) for name, one in value.items() if name != _IS}
    return _kind(value[_IS])(**held) if _IS in value else held


def _kind(name: str) -> type:
    module, _, wanted = str(name).partition(":")
    found = getattr(_module(module), wanted, None)
    own = isinstance(found, type) and is_dataclass(found) and found.__module__ == module
    if not own:
        raise CheckpointError(f"The file names an option {name!r} that the library does not have.")
    return cast(type, found)


def _module(name: str) -> object:
    """A module of the library, or nothing."""
    try:
        return importlib.import_module(name) if name.startswith("bayesrule.") else None
    except ImportError:
        return None
