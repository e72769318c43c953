"""Nested dataclasses, dicts and tensors as trees: one mechanism for saving, loading, moving."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")
_LEAF = Tensor | int | float


def leaves(tree: Any) -> Iterator[tuple[str, Tensor | int | float | bool]]:
    """All tensors and numbers of a nested object, with slash-separated names.

    >>> import torch
    >>> [name for name, _ in leaves({"a": {"b": torch.zeros(2)}, "c": 3})]
    ['a/b', 'c']
    """
    return parts(tree, _LEAF)


def parts(tree: Any, kind: type | UnionType, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All parts of a kind, with slash-separated names; does not descend into such parts."""
    if isinstance(tree, kind):
        yield prefix, tree
        return
    for name, child in children(tree):
        yield from parts(child, kind, f"{prefix}/{name}" if prefix else name)


def tensors(tree: Any) -> dict[str, Tensor]:
    """All tensors of a nested object by name."""
    return dict(parts(tree, Tensor))


def rebuild(tree: T, leaf: Callable[[str, Any], Any], prefix: str = "") -> T:
    """A copy of a nested object in which every tensor and number is `leaf(name, old)`."""
    if isinstance(tree, _LEAF):
        return leaf(prefix, tree)
    new = {
        name: rebuild(child, leaf, f"{prefix}/{name}" if prefix else name)
        for name, child in children(tree)
    }
    return with_children(tree, new)


def with_children(tree: T, new: dict[str, Any]) -> T:
    """A copy of a dataclass or a dict with the parts `new`; returns other objects unchanged."""
    kind: type = type(tree)
    if _fields(kind) is not None:
        return dataclasses.replace(tree, **new)  # type: ignore[type-var]
    return new if isinstance(tree, dict) else tree  # type: ignore[return-value]


def map_tensors(tree: T, function: Callable[[Tensor], Tensor]) -> T:
    """A copy of a nested object with `function` applied to every tensor."""
    return rebuild(tree, lambda _, old: function(old) if isinstance(old, Tensor) else old)


def children(tree: Any) -> Iterable[tuple[str, Any]]:
    """The named parts of a dataclass or a dict; other objects have none."""
    if isinstance(tree, dict):
        return tree.items()
    kind: type = type(tree)
    return [(name, getattr(tree, name)) for name in _fields(kind) or ()]


@functools.cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The fields that the constructor of a dataclass takes; None for other classes."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)
