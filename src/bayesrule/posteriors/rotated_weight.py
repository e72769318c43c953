"""Weights that are known in other bases, on their way through a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrule.expectations.layerwise import FACTS
from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.matrices.rotation import Rotation
from bayesrule.types import Params


class _Layer:
    """The weight and the bias of one layer, `V X Uᵀ`, from the matrix X (out, in)."""

    def __init__(self, layer: CorrectedLayer, seen: Tensor) -> None:
        self.place, self.left, self.right, self.seen = layer.place, layer.left, layer.right, seen

    @cached_property
    def whole(self) -> Params:
        """Weight and bias by name, worked out once."""
        # A module may look at its weight without gradients first and use it with them later.
        with torch.enable_grad():
            return self.place.split(self.left @ self.seen @ self.right.mT)

    def linear(self, x: Tensor) -> Tensor:
        """`((x, 1) U) Xᵀ Vᵀ`: with few inputs cheaper than the weight itself."""
        flat = x.reshape(-1, x.shape[-1])
        if self.place.bias is None:
            inputs = flat @ self.right
        else:
            inputs = torch.addmm(self.right[-1], flat, self.right[:-1])
        outputs = inputs @ self.seen.mT @ self.left.mT
        return outputs.reshape(*x.shape[:-1], len(self.left))

    def is_cheap(self, x: Tensor) -> bool:
        """Whether turning the inputs takes fewer operations than turning the weight."""
        (out, wide), rows = self.place.size, x.numel() // max(1, x.shape[-1])
        return rows * (out**2 + wide**2) < out * wide * (out + wide)


class RotatedWeight(Tensor):
    """A weight or a bias of a layer whose matrix is known in other bases.

    A linear layer with few inputs is applied in these bases; every other torch function gets the
    weight as it is.
    """

    label: str
    layer: _Layer

    @staticmethod
    def __new__(cls, label: str, shape: Sequence[int], layer: _Layer) -> RotatedWeight:
        like = layer.seen
        tensor = Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=like.dtype, device=like.device, requires_grad=True
        )
        tensor.label, tensor.layer = label, layer
        return tensor

    @property
    def whole(self) -> Tensor:
        """The weight as it is."""
        return self.layer.whole[self.label]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if function in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **named)
        if function is F.linear:
            return _linear(*args, **named)
        return function(*_plain(args), **{name: _plain(value) for name, value in named.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Reached only by calls that torch makes behind the back of __torch_function__.
        named = {name: _plain(value) for name, value in (kwargs or {}).items()}
        return function(*_plain(args), **named)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RotatedWeight({self.label!r}, shape={tuple(self.shape)})"


def turned(rotation: Rotation, seen: Params) -> Params:
    """What to put in a network's places for weights that are `seen` in the bases of a rotation."""
    found = {name: seen[name] for name in rotation.rest}
    for name, matrix in rotation.layers.items():
        layer, (out, *_) = _Layer(matrix, seen[name]), matrix.place.shape
        found[name] = RotatedWeight(name, matrix.place.shape, layer)
        if matrix.place.bias is not None:
            found[matrix.place.bias] = RotatedWeight(matrix.place.bias, (out,), layer)
    return {name: found[name] for name in rotation.names}


def pulled(
    outputs: Tensor,
    vector: Tensor,
    leaves: Params,
    weights: Params,
    *,
    retain_graph: bool = False,
) -> Params:
    """The gradients of `leaves` for one vector backpropagated, zero for what was not used.

    What reaches one of the `weights` that stand for them went around every torch function, as
    `torch.autograd.Function` does, and would be lost.
    """
    standing = {k: v for k, v in weights.items() if isinstance(v, RotatedWeight)}
    wanted = [*leaves.values(), *standing.values()]
    with torch._C.DisableTorchFunctionSubclass():
        found = torch.autograd.grad(
            outputs, wanted, vector, retain_graph=retain_graph, allow_unused=True
        )
    for name, slope in zip(standing, found[len(leaves) :], strict=True):
        if slope is not None:
            raise TypeError(
                f"The weight {name!r} is given to a torch.autograd.Function, which takes it as it "
                "is. Use GaussianFamily() instead of RotatedFamily() (inverse_every=1)."
            )
    pairs = zip(leaves.items(), found, strict=False)
    return {k: torch.zeros_like(leaf) if g is None else g for (k, leaf), g in pairs}


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    layer = getattr(weight, "layer", None)
    own = getattr(bias, "label", None), getattr(bias, "layer", layer)
    if layer is None or weight.label != layer.place.weight or own != (layer.place.bias, layer):
        return F.linear(_plain(input), _plain(weight), _plain(bias))
    x = _plain(input)
    return layer.linear(x) if layer.is_cheap(x) else F.linear(x, weight.whole, _plain(bias))


def _plain(value: Any) -> Any:
    if isinstance(value, RotatedWeight):
        return value.whole
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    return value
