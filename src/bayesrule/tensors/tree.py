"""Nested dataclasses, dicts and tensors as trees: one mechanism for saving, loading, moving."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
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
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return dataclasses.replace(tree, **new)
    return new if isinstance(tree, dict) else tree  # type: ignore[return-value]


def map_tensors(tree: T, function: Callable[[Tensor], Tensor]) -> T:
    """A copy of a nested object with `function` applied to every tensor."""
    return rebuild(tree, lambda _, old: function(old) if isinstance(old, Tensor) else old)


def children(tree: Any) -> Iterator[tuple[str, Any]]:
    """The named parts of a dataclass or a dict; other objects have none."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            if field.init:
                yield field.name, getattr(tree, field.name)
    elif isinstance(tree, dict):
        yield from tree.items()
