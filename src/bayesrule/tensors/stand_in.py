"""Tensor subclasses that stand in a network for what plain numbers cannot express.

Modules are unmodified, so special weights must act through the torch functions that use them. A
stand-in looks like a tensor, has no memory of its own, and handles those functions itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from bayesrule.types import Params

# What can be read from a tensor without its values.
_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_mps", "is_nested",
               "is_sparse", "is_quantized", "layout", "requires_grad", "is_leaf")  # fmt: skip
FACTS = {getattr(Tensor, name).__get__ for name in _ATTRIBUTES} | {
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.__len__,
    Tensor.is_floating_point, Tensor.is_complex, Tensor.stride, Tensor.is_contiguous,
    Tensor.element_size, Tensor.get_device, Tensor.is_inference, Tensor.__hash__, torch.numel,
    torch.is_floating_point, torch.is_complex,
}  # fmt: skip


class StandIn(Tensor):
    """A tensor without memory, made with `Tensor._make_wrapper_subclass`.

    A torch function that is called with it runs its entry in `handlers` with the same arguments.
    Functions without an entry go to `unhandled`. Calls from torch's C++ code, which do not look for
    handlers, go to `bypassed`.
    """

    handlers: ClassVar[Mapping[Any, Callable[..., Any]]] = {}

    @classmethod
    def unhandled(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a torch function that has no handler."""
        raise NotImplementedError

    @classmethod
    def bypassed(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation that torch calls without looking for handlers."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        handler = cls.handlers.get(function)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        if function in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        return cls.unhandled(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.bypassed(function, args, kwargs or {})


class WeightStandIn(StandIn):
    """A weight whose values are computed only when a torch function needs them.

    Functions without a handler run on `materialised()`. `alternative` is the last sentence of
    errors: what to use instead where the stand-in does not work.
    """

    label: str

    def materialised(self) -> Tensor:
        """The weight as a plain tensor."""
        raise NotImplementedError

    @property
    def alternative(self) -> str:
        """What to use where this stand-in does not work."""
        raise NotImplementedError

    @classmethod
    def unhandled(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return function(*plain(args), **{name: plain(value) for name, value in kwargs.items()})

    bypassed = unhandled


def plain(value: Any) -> Any:
    """Replaces stand-ins by plain tensors, in lists and tuples too."""
    if isinstance(value, WeightStandIn):
        return value.materialised()
    if type(value) in (tuple, list):
        return type(value)(plain(item) for item in value)
    return value


def gradients(
    outputs: Tensor,
    leaves: Params,
    weights: Params | None = None,
    vector: Tensor | None = None,
    *,
    retain_graph: bool = False,
) -> Params:
    """The gradients of `leaves` by name; zero for a leaf that was not used.

    `weights` may hold stand-ins that were computed from the leaves. A gradient that reaches a
    stand-in itself would be lost, so it raises: a `torch.autograd.Function` took the stand-in
    without calling a handler.
    """
    stand_ins = [v for v in (weights or {}).values() if isinstance(v, WeightStandIn)]
    wanted = [*leaves.values(), *stand_ins]
    try:
        with torch._C.DisableTorchFunctionSubclass():
            slopes = torch.autograd.grad(
                outputs, wanted, vector, retain_graph=retain_graph, allow_unused=True
            )
    except CheckpointError as problem:
        if not stand_ins:
            raise
        raise TypeError(
            f"The weight {stand_ins[0].label!r} and those like it cannot be met a second time, as "
            f"torch.utils.checkpoint has it. {stand_ins[0].alternative}"
        ) from problem
    for weight, slope in zip(stand_ins, slopes[len(leaves) :], strict=True):
        if slope is not None:
            raise TypeError(
                f"The weight {weight.label!r} is given to a torch.autograd.Function, which takes "
                f"it as it is. {weight.alternative}"
            )
    pairs = zip(leaves.items(), slopes, strict=False)
    return {k: torch.zeros_like(v) if slope is None else slope for (k, v), slope in pairs}
