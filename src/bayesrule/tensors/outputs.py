"""Outputs of a module: one tensor, or a container with one field to use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

LOGITS = "logits"


def fields(outputs: Any) -> list[str | int]:
    """The fields of outputs that are not a tensor: keys, names or positions; often none."""
    if isinstance(outputs, Mapping):
        return list(outputs)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return [field.name for field in dataclasses.fields(outputs)]
    if isinstance(outputs, tuple | list):
        return list(getattr(outputs, "_fields", range(len(outputs))))
    return []


def field(outputs: Any, name: str | int) -> Any:
    """One field of a dict, a tuple or an object; raises a TypeError if it does not exist."""
    try:
        by_key = isinstance(outputs, Mapping) or isinstance(name, int)
        return outputs[name] if by_key else getattr(outputs, str(name))
    except (LookupError, AttributeError, TypeError):
        has = ", ".join(map(repr, fields(outputs))) or "no fields"
        raise TypeError(
            f"The module returns a {type(outputs).__name__} without the field {name!r}; it has "
            f"{has}."
        ) from None


def logits(outputs: Any) -> Any:
    """The field `logits` of a classifier's outputs, if there is one, else the outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs.get(LOGITS, outputs)
    return getattr(outputs, LOGITS, outputs)


class Output(nn.Module):
    """A module that returns one field of another's outputs, by name, key or position.

    A field called `logits` is found without it.

    >>> import torch
    >>> lstm = Output(nn.LSTM(2, 3, batch_first=True), 0)
    >>> lstm(torch.zeros(5, 7, 2)).shape
    torch.Size([5, 7, 3])
    """

    def __init__(self, module: nn.Module, field: str | int) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"Output takes a torch.nn.Module, got {type(module).__name__}.")
        if not isinstance(field, str | int):
            raise TypeError(f"field is a name or a place, got {field!r}.")
        self.module, self.field = module, field
        # The wrapper must not change the module's mode.
        self.training = module.training

    def forward(self, *args: Any, **named: Any) -> Any:
        """The chosen field."""
        return field(self.module(*args, **named), self.field)

    def extra_repr(self) -> str:
        return f"field={self.field!r}"
