"""Abilities that a whole derives from its parts, or an object from what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def derived(ability: Callable[[Any], T]) -> T:
    """A property in the place of a class attribute: an ability that depends on the object.

    To a type checker it is what the property returns, as the attribute of the base class is.
    """
    return property(ability)  # type: ignore[return-value]


def every(parts: str, ability: str) -> Any:
    """An ability that holds where it does for all of the parts, a dictionary of that name."""
    return _of_parts(parts, ability, all)


def some(parts: str, ability: str) -> Any:
    """An ability that holds where it does for any of the parts, a dictionary of that name."""
    return _of_parts(parts, ability, any)


def first(parts: str, obstacle: str) -> Any:
    """What hinders the first of the parts that has an obstacle; None where none has."""
    return _of_parts(parts, obstacle, lambda found: next((one for one in found if one), None))


def _of_parts(parts: str, name: str, whole: Callable[[Iterable[Any]], Any]) -> Any:
    return property(
        lambda self: whole(getattr(part, name) for part in getattr(self, parts).values())
    )
