"""What a module does with its parameters, noted while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.layers import LAYERS, Call
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
    """Notes every call of a known layer, and every parameter that is used in any other way."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in params.items()}
        self.uses: list[Use] = []
        self.loose: set[str] = set()
        self.mixes_examples = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is functional.batch_norm and (kwargs.get("training") or any(args[5:6])):
            self.mixes_examples = True
        touched = self._touched((*args, *kwargs.values()))
        if not touched or not _is_computation(out):
            return out
        call = LAYERS[func](out, *args, **kwargs) if func in LAYERS else None
        if call is None:
            self.loose.update(touched)
            return out
        names = self._name(call.weight), self._name(call.bias)
        self.loose.update(touched.difference(names))
        sizes = len(call.layer.input), len(out)
        self.uses.append(Use(call, *names, _edge(out), sizes, out.shape))
        return out

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


def _edge(out: Tensor) -> GradientEdge | None:
    """Where the gradient of an output arrives, even if the output is later changed in place.

    A view that is changed in place gets a new history, without the node it had; its base keeps it.
    """
    base = out._base if out._is_view() else None
    if base is not None and base.numel() == out.numel() and base.requires_grad:
        return get_gradient_edge(base)
    return get_gradient_edge(out) if out.requires_grad else None


def _is_computation(out: Any) -> bool:
    """Whether a call gave tensors (and not a shape, a type or a flag)."""
    if isinstance(out, Tensor):
        return True
    return isinstance(out, list | tuple) and any(_is_computation(part) for part in out)
