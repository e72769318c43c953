"""Batch norm in training mode as a map of single examples: its statistics count as known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Statistics = tuple[Tensor, Tensor]
"""The mean and the inverse standard deviation of each channel."""


@dataclass
class Way:
    """Which way back a recording takes through its batch norms."""

    held: bool = False


class _Held(torch.autograd.Function):
    """The outputs of a batch norm, with a second way back on which they are linear in the inputs.

    On the first way examples see each other through the batch's mean and variance. On the second
    these are constants, so that the gradient of an input is `g · weight / std`.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, slope: Tensor, way: Way) -> Tensor:
        ctx.slope, ctx.way = slope, way
        # Nothing is changed, but an output of its own would be a copy.
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.way.held:
            return g, None, None, None
        slope = ctx.slope.view(-1, *[1] * (g.ndim - 2))
        return None, g * slope, None, None


def hold(out: Tensor, x: Tensor, weight: Tensor | None, known: Statistics, way: Way) -> Tensor:
    """The outputs (n, C, *) of a batch norm, whose way back is chosen by `way`."""
    if not out.requires_grad:
        return out
    slope = known[1] if weight is None else known[1] * weight.detach()
    found: Tensor = _Held.apply(out, x, slope, way)
    return found


def takes_statistics(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call is a batch norm that looks at the whole batch."""
    return func is functional.batch_norm and bool(kwargs.get("training") or any(args[5:6]))


class HeldNorms(TorchFunctionMode):
    """Batch norms in training mode use given statistics, in the order of their calls."""

    def __init__(self, known: Iterable[Statistics]) -> None:
        super().__init__()
        self._known = iter(known)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not takes_statistics(func, args, kwargs):
            return func(*args, **kwargs)
        return _normalised(next(self._known), *args, **kwargs)


def _normalised(
    known: Statistics,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *options: Any,
    **named: Any,
) -> Tensor:
    mean, inverse = known
    return functional.batch_norm(input, mean, inverse.pow(-2), weight, bias, eps=0.0)
