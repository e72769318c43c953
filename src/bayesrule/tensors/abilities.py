"""What a whole can do, by what its parts can."""

from __future__ import annotations

from typing import Any


def every(parts: str, ability: str) -> Any:
    """A property that holds where it does for all of the parts, a dictionary of that name."""

    def holds(self: Any) -> bool:
        return all(getattr(part, ability) for part in getattr(self, parts).values())

    return property(holds, doc=f"Whether all {parts} have it.")


def some(parts: str, ability: str) -> Any:
    """A property that holds where it does for any of the parts, a dictionary of that name."""

    def holds(self: Any) -> bool:
        return any(getattr(part, ability) for part in getattr(self, parts).values())

    return property(holds, doc=f"Whether any of the {parts} has it.")
