"""Whether what was read from a file has the types that its dataclass says."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_types(part: Any) -> None:
    """Raises where a field of a dataclass, or of those within it, is not of its type.

    >>> from bayesrule.app.recipe import Recipe
    >>> check_types(Recipe(hidden=(5,)))
    >>> check_types(Recipe(hidden=(5.5,)))
    Traceback (most recent call last):
    TypeError: its hidden is (5.5,)
    """
    types = get_type_hints(type(part))
    for field in fields(part):
        value = getattr(part, field.name)
        if not _fits(value, types[field.name]):
            raise TypeError(f"its {field.name} is {str(value)[:60]}")


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if is_dataclass(kind):
        if not isinstance(value, kind):  # type: ignore[arg-type]
            return False
        check_types(value)
        return True
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is (origin or kind)
