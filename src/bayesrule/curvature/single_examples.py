"""Runs a module on one example at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.recorder import Statistics, takes_statistics
from bayesrule.curvature.recurrent import unrolled


class SingleExamples(TorchFunctionMode):
    """Runs a module so that `vmap` can map it over examples.

    Recurrent layers run as loops of operations that `vmap` knows; batch norms in training mode use
    given statistics, in the order of their calls.
    """

    def __init__(self, statistics: Iterable[Statistics] = ()) -> None:
        super().__init__()
        self._statistics = iter(statistics)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if takes_statistics(func, args, kwargs):
            return _batch_norm(next(self._statistics), *args, **kwargs)
        steps = None if kwargs else unrolled(func, args)
        return func(*args, **kwargs) if steps is None else steps[0]


def _batch_norm(
    statistics: Statistics,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *options: Any,
    **named: Any,
) -> Tensor:
    mean, inverse = statistics
    return functional.batch_norm(input, mean, inverse.pow(-2), weight, bias, eps=0.0)
