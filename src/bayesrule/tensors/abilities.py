"""Properties for abilities that an object derives from its fields or from its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def derived(ability: Callable[[Any], T]) -> T:
    """A property in place of a base class's attribute, for an ability that depends on the object.

    A type checker sees the type that the property returns, as for the base class's attribute.
    """
    return property(ability)  # type: ignore[return-value]


def every(parts: str, ability: str) -> Any:
    """An ability that holds if all parts have it; `parts` names the dictionary of parts."""
    return _of_parts(parts, ability, all)


def some(parts: str, ability: str) -> Any:
    """An ability that holds if any part has it; `parts` names the dictionary of parts."""
    return _of_parts(parts, ability, any)


def first(parts: str, obstacle: str) -> Any:
    """The obstacle of the first part that has one, or None; `parts` names their dictionary."""
    return _of_parts(parts, obstacle, lambda reasons: next(filter(None, reasons), None))


def _of_parts(parts: str, name: str, whole: Callable[[Iterable[Any]], Any]) -> Any:
    return property(
        lambda self: whole(getattr(part, name) for part in getattr(self, parts).values())
    )
