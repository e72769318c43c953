"""A module as it is run on one example at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.recorder import Statistics as Statistics
from bayesrule.curvature.recorder import takes_statistics
from bayesrule.curvature.recurrent import unrolled


class SingleExamples(TorchFunctionMode):
    """Runs a module as `vmap` can map it over examples.

    Recurrent layers are loops, of which `vmap` knows every operation; batch norms in training mode
    use given statistics, in the order of their calls.
    """

    def __init__(self, known: Iterable[Statistics] = ()) -> None:
        super().__init__()
        self._known = iter(known)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if takes_statistics(func, args, kwargs):
            return _normalised(next(self._known), *args, **kwargs)
        found = None if kwargs else unrolled(func, args)
        return func(*args, **kwargs) if found is None else found[0]


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
