"""What a module does with its parameters, noted while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.held import Statistics, Way, hold, takes_statistics
from bayesrule.curvature.layers import LAYERS, Call, ChannelNormLayer, LinearLayer
from bayesrule.curvature.recurrent import Side, unrolled
from bayesrule.types import Params


@dataclass(frozen=True)
class Use:
    """One recorded call: which parameters it had and where the gradient of its output arrives."""

    call: Call
    weight: str | None
    bias: str | None
    edge: GradientEdge | None
    batch_sizes: tuple[int, int]
    shape: torch.Size


class Recorder(TorchFunctionMode):
    """Notes every call of a known layer, and every parameter that is used in any other way.

    Recurrent layers run as loops, so that each of their linear maps is a layer with the steps as
    its positions. `statistics` are those of the batch norms that looked at the whole batch; `way`
    tells whether gradients go back through them.
    """

    def __init__(self, params: Params) -> None:
        super().__init__()
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
            self._note(touched, [(_linear_call(side), side.slot) for side in steps[1]])
            return steps[0]
        out = func(*args, **kwargs)
        mixes = takes_statistics(func, args, kwargs)
        if not mixes and not (touched and _is_computation(out)):
            return out
        call = LAYERS[func](out, *args, **kwargs) if func in LAYERS else None
        if mixes and call is not None:
            out = self._hold(out, args[0] if args else kwargs["input"], call)
        if touched:
            self._note(touched, [] if call is None else [(call, out)])
        return out

    def _hold(self, out: Tensor, x: Tensor, call: Call) -> Tensor:
        """A batch norm's outputs, which can go back as if its statistics were known."""
        assert isinstance(call.layer, ChannelNormLayer)
        mean, inverse = (part.detach() for part in call.layer.statistics(call.layer.input))
        self.statistics.append((mean, inverse))
        return hold(out, x, call.weight, (mean, inverse), self.way)

    def _note(self, touched: set[str], calls: list[tuple[Call, Tensor]]) -> None:
        """Keeps the calls with their outputs; parameters that are in none of them are loose."""
        known: set[str | None] = set()
        for call, out in calls:
            names = self._name(call.weight), self._name(call.bias)
            sizes = len(call.layer.input), len(out)
            self.uses.append(Use(call, *names, _edge(out), sizes, out.shape))
            known.update(names)
        self.loose.update(touched - known)

    def _name(self, value: Tensor | None) -> str | None:
        return None if value is None else self._names.get(id(value))

    def _touched(self, args: Iterable[Any]) -> set[str]:
        found = set()
        for arg in args:
            if isinstance(arg, Tensor):
                name = self._names.get(id(arg))
                if name is not None:
                    found.add(name)
            elif isinstance(arg, list | tuple):
                found |= self._touched(arg)
        return found


def _linear_call(side: Side) -> Call:
    return Call(LinearLayer(side.input, side.weight), side.weight, side.bias)


def _edge(out: Tensor) -> GradientEdge | None:
    """Where the gradient of an output arrives, even if the output is later changed in place.

    A view that is changed in place gets a new history, without the node it had; its base keeps it.
    """
    base = out._base if out._is_view() else None
    if base is not None and base.numel() == out.numel() and base.requires_grad:
        return get_gradient_edge(base)
    return get_gradient_edge(out) if out.requires_grad else None


def _is_computation(out: Any) -> bool:
    """Whether a call gave tensors with a way back (and not a shape, a flag or bare numbers)."""
    if isinstance(out, Tensor):
        return out.requires_grad
    return isinstance(out, list | tuple) and any(_is_computation(part) for part in out)
