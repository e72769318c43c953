"""Targets with a weight for each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.moments.tensor import name_of
from bayesrule.tensors.stand_in import StandIn


class WeightedTensor(StandIn):
    """Targets `plain` (n, *) with a weight for each example, (n,).

    Functions that select or join rows keep the weights; a function that would lose them raises.
    """

    plain: Tensor
    weight: Tensor
    handlers: ClassVar[Mapping[Any, Callable[..., Any]]] = {}

    @staticmethod
    def __new__(cls, values: Tensor, weight: Tensor) -> WeightedTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device=values.device
        )
        tensor.plain, tensor.weight = values, weight
        return tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> WeightedTensor:
        """Applies a function to both the values and the weights."""
        return WeightedTensor(function(self.plain), function(self.weight))

    @classmethod
    def unhandled(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise TypeError(
            f"{name_of(function)!r} of weighted targets would lose their weights. Weighted targets "
            "go with learner.step, learner.finish, fit and fit_many; elsewhere give the plain "
            "ones, targets.plain."
        )

    bypassed = unhandled

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"WeightedTensor(plain={self.plain!r}, weight={self.weight!r})"


def weighted(targets: Any, weight: Any = None) -> WeightedTensor:
    """Targets (n, *) whose examples count `weight` (n,) times each in the loss.

    The loss is `−Σ_i w_i log p(y_i | f_i)`: a weight of 3 acts like three such rows, a weight of 0
    like none. Steps scale by the number of rows, so `num_data` is the number of rows, too. Rows of
    NaN targets get weight 0, so `weighted(y)` leaves them out.

    >>> y = weighted(torch.tensor([0.5, torch.nan, 2.0]), [1.0, 1.0, 3.0])
    >>> y.weight, y[1:].weight
    (tensor([1., 0., 3.]), tensor([0., 3.]))
    """
    values = targets if isinstance(targets, Tensor) else torch.as_tensor(targets)
    if isinstance(values, WeightedTensor):
        raise TypeError("The targets have weights already; multiply them, targets.weight.")
    if values.ndim == 0:
        raise ValueError("Weights are for targets (n, *), a row for each example; got one number.")
    w = torch.ones(len(values)) if weight is None else torch.as_tensor(weight)
    w = w if w.is_floating_point() else w.to(torch.get_default_dtype())
    w = w.to(values.device)
    if w.shape != values.shape[:1]:
        raise ValueError(
            f"There is one weight for each example, ({len(values)},), got {tuple(w.shape)}."
        )
    if not ((w >= 0).all() and w.isfinite().all()):
        raise ValueError(
            f"Weights are finite numbers from 0 up, got {float(w.min())} to {float(w.max())}."
        )
    return _without_missing(values, w)


def _without_missing(values: Tensor, weight: Tensor) -> WeightedTensor:
    """Gives rows of NaN weight 0 and replaces the NaN by zeros."""
    if isinstance(values, StandIn) or not values.is_floating_point():
        return WeightedTensor(values, weight)
    missing = values.isnan().reshape(len(values), -1)
    partly = missing.any(1) & ~missing.all(1) & (weight > 0)
    if partly.any():
        raise ValueError(
            f"Row {int(partly.nonzero()[0])} of the targets is NaN in some of its columns, but a "
            "weight is for a whole row: drop such rows, give them no weight, or use tagi, which "
            "takes every NaN for a target that is missing."
        )
    return WeightedTensor(values.nan_to_num(nan=0.0), weight * ~missing.any(1))


def split(targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Targets without their weights, and the weights, if they have any."""
    if isinstance(targets, WeightedTensor):
        return targets.plain, targets.weight
    return targets, None


def times(values: Tensor, weight: Tensor | None, axis: int = 0) -> Tensor:
    """Values times their examples' weights, whose first axis is `axis` of the values."""
    if weight is None:
        return values
    trailing = values.ndim - axis - weight.ndim
    return values * weight.reshape(*weight.shape, *[1] * trailing).to(values.dtype)


def rooted(like: Tensor, values: Tensor) -> Tensor:
    """Other targets with the roots of the weights of `like`, for gradients that get squared."""
    if not isinstance(like, WeightedTensor):
        return values
    return WeightedTensor(values, like.weight.sqrt())


def _both(function: Any) -> Callable[..., WeightedTensor]:
    def run(x: WeightedTensor, *args: Any, **options: Any) -> WeightedTensor:
        return x.each(lambda part: function(part, *args, **options))

    return run


def _converted(function: Any) -> Callable[..., WeightedTensor]:
    """Converts the values; their weights only follow them to another device."""

    def run(x: WeightedTensor, *args: Any, **options: Any) -> WeightedTensor:
        values = function(x.plain, *args, **options)
        return WeightedTensor(values, x.weight.to(values.device))

    return run


def _joined(function: Any) -> Callable[..., WeightedTensor]:
    def run(tensors: Sequence[Any], *args: Any, **options: Any) -> WeightedTensor:
        pairs = [
            split(part if isinstance(part, Tensor) else torch.as_tensor(part)) for part in tensors
        ]
        if any(weight is None for _, weight in pairs):
            raise TypeError("Some targets have weights and others do not; use weighted(y) for all.")
        values, weights = zip(*pairs, strict=True)
        return WeightedTensor(
            function(values, *args, **options), function(weights, *args, **options)
        )

    return run


def _rows(x: WeightedTensor, index: Any) -> WeightedTensor:
    if isinstance(index, tuple):
        raise TypeError("Weighted targets are taken by rows, as y[rows].")
    return x.each(lambda part: part[index])


def _repeated(x: WeightedTensor, *sizes: int) -> WeightedTensor:
    return WeightedTensor(x.plain.repeat(*sizes), x.weight.repeat(*sizes[: x.weight.ndim]))


WeightedTensor.handlers = {
    Tensor.__getitem__: _rows,
    Tensor.repeat: _repeated,
    Tensor.isnan: lambda x: x.plain.isnan(),
    **{
        function: _both(function)
        for function in (Tensor.clone, torch.clone, Tensor.detach, Tensor.contiguous,
                         Tensor.flatten, Tensor.unflatten, Tensor.cpu, Tensor.cuda,
                         Tensor.pin_memory)
    },
    **{
        function: _converted(function)
        for function in (Tensor.to, Tensor.double, Tensor.float, Tensor.long)
    },
    torch.cat: _joined(torch.cat),
    torch.stack: _joined(torch.stack),
}  # fmt: skip
