"""Records what a module does with its parameters while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.layers import LAYERS, ChannelNormLayer, Layer
from bayesrule.curvature.recurrent import unrolled
from bayesrule.tensors.unfit import wide
from bayesrule.types import Params

Statistics = tuple[Tensor, Tensor]
"""The mean and the inverse standard deviation of each channel."""


@dataclass
class Way:
    """Which backward path a recording takes through its batch norms."""

    held: bool = False


class TwoWays(torch.autograd.Function):
    """The outputs of a batch norm, with a second backward path that is linear in the inputs.

    On the first path, examples affect each other through the batch's mean and variance. On the
    second (`way.held`) these are constants, so that the gradient of an input is `g · weight / std`.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, slope: Tensor, way: Way) -> Tensor:
        ctx.slope, ctx.way = slope, way
        # Nothing changes, but returning a new output would copy it.
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.way.held:
            return g, None, None, None
        slope = ctx.slope.view(-1, *[1] * (g.ndim - 2))
        return None, g * slope, None, None


@dataclass(frozen=True)
class Use:
    """One recorded call: its parameters, and where the gradient of its output arrives."""

    layer: Layer
    weight: str | None
    bias: str | None
    edge: GradientEdge | None
    batch_sizes: tuple[int, int]
    shape: torch.Size


class Recorder(TorchFunctionMode):
    """Records every call of a known layer, and every parameter that is used in any other way.

    Recurrent layers run as loops, so that each of their linear maps is a layer with the steps as
    positions. `statistics` are those of the batch norms that use the whole batch; `way` sets
    whether gradients go through them. With a `size` above 1, embeddings that a module looks up once
    for this many examples (which sets `shared`) are looked up for each of them.
    """

    def __init__(self, params: Params, size: int = 1) -> None:
        super().__init__()
        self._size, self.shared = size, False
        self._names = {id(value): name for name, value in params.items()}
        self.uses: list[Use] = []
        self.loose: set[str] = set()
        self.statistics: list[Statistics] = []
        self.way = Way()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        touched = self._touched((*args, *kwargs.values()))
        steps = unrolled(func, args) if touched and not kwargs else None
        if steps is not None:
            self._note(touched, steps[1])
            return steps[0]
        if func is functional.embedding and touched and self._size > 1:
            args = self._for_each(*args)
        out = func(*args, **kwargs)
        mixes = takes_statistics(func, args, kwargs)
        if not mixes and not (touched and _is_computation(out)):
            return out
        layer = LAYERS[func](out, *wide(args), **kwargs) if func in LAYERS else None
        if mixes and layer is not None:
            out = self._hold(out, args[0] if args else kwargs["input"], layer)
        if touched:
            self._note(touched, [] if layer is None else [(layer, out)])
        return out

    def _for_each(self, index: Tensor, *rest: Any) -> tuple[Any, ...]:
        """The same look-up for every example, if one was meant for all of them (positions)."""
        if index.ndim < 2 or len(index) != 1:
            return index, *rest
        self.shared = True
        return index.expand(self._size, *index.shape[1:]), *rest

    def _hold(self, out: Tensor, x: Tensor, layer: Layer) -> Tensor:
        """A batch norm's outputs, with a backward path on which its statistics are constants."""
        assert isinstance(layer, ChannelNormLayer)
        mean, inverse = (part.detach() for part in layer.statistics(layer.input))
        self.statistics.append((mean, inverse))
        if not out.requires_grad:
            return out
        slope = inverse if layer.weight is None else inverse * layer.weight.detach()
        return TwoWays.apply(out, x, slope, self.way)

    def _note(self, touched: set[str], calls: Iterable[tuple[Layer, Tensor]]) -> None:
        """Keeps the calls; parameters that no call has as weight or bias are loose."""
        explained: set[str | None] = set()
        for layer, out in calls:
            names = self._names.get(id(layer.weight)), self._names.get(id(layer.bias))
            sizes = len(layer.input), len(out)
            self.uses.append(Use(layer, *names, _edge(out), sizes, out.shape))
            explained.update(names)
        self.loose.update(touched - explained)

    def _touched(self, args: Iterable[Any]) -> set[str]:
        names = set()
        for arg in args:
            if id(arg) in self._names:
                names.add(self._names[id(arg)])
            elif isinstance(arg, list | tuple):
                names |= self._touched(arg)
        return names


def takes_statistics(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call is a batch norm that takes its statistics from the whole batch."""
    return func is functional.batch_norm and bool(kwargs.get("training") or any(args[5:6]))


def _edge(out: Tensor) -> GradientEdge | None:
    """Where the gradient of an output arrives, even if the output is later changed in place.

    A view that is changed in place gets a new history without its old node, which its base keeps.
    """
    base = out._base if out._is_view() else None
    if base is not None and base.numel() == out.numel() and base.requires_grad:
        return get_gradient_edge(base)
    return get_gradient_edge(out) if out.requires_grad else None


def _is_computation(out: Any) -> bool:
    """Whether a call gave tensors with a graph (not a shape, a flag or constants)."""
    if isinstance(out, Tensor):
        return out.requires_grad
    return isinstance(out, list | tuple) and any(_is_computation(part) for part in out)
