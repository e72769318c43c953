"""Weights that are given in other bases, as a network uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.matrices.rotation import Rotation
from bayesrule.tensors.stand_in import WeightStandIn, plain
from bayesrule.types import Params


class _RotatedLayer:
    """The weight and the bias of one layer, `V X Uᵀ`, from the matrix X (out, in) in its bases."""

    def __init__(self, layer: CorrectedLayer, matrix: Tensor) -> None:
        self.place, self.left, self.right = layer.place, layer.left, layer.right
        self.matrix = matrix

    @cached_property
    def whole(self) -> Params:
        """Weight and bias by name, worked out once."""
        # A module may look at its weight without gradients first and use it with them later.
        with torch.enable_grad():
            return self.place.split(self.left @ self.matrix @ self.right.mT)

    def linear(self, x: Tensor) -> Tensor:
        """`((x, 1) U) Xᵀ Vᵀ`: with few inputs cheaper than the weight itself."""
        flat = x.reshape(-1, x.shape[-1])
        if self.place.bias is None:
            inputs = flat @ self.right
        else:
            inputs = torch.addmm(self.right[-1], flat, self.right[:-1])
        outputs = inputs @ self.matrix.mT @ self.left.mT
        return outputs.reshape(*x.shape[:-1], len(self.left))

    def is_cheap(self, x: Tensor) -> bool:
        """Whether rotating the inputs takes fewer operations than rotating the weight."""
        (out, wide), rows = self.place.size, x.numel() // max(1, x.shape[-1])
        return rows * (out**2 + wide**2) < out * wide * (out + wide)


class RotatedWeight(WeightStandIn):
    """A weight or a bias of a layer whose matrix is given in other bases.

    A linear layer with few inputs is applied in these bases; every other torch function gets the
    weight itself.
    """

    layer: _RotatedLayer
    alternative = "Use GaussianFamily() instead of RotatedFamily() (inverse_every=1)."

    @staticmethod
    def __new__(cls, label: str, shape: Sequence[int], layer: _RotatedLayer) -> RotatedWeight:
        like = layer.matrix
        tensor = Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=like.dtype, device=like.device, requires_grad=True
        )
        tensor.label, tensor.layer = label, layer
        return tensor

    def materialised(self) -> Tensor:
        return self.layer.whole[self.label]

    @classmethod
    def bypassed(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return cls.unhandled(function, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RotatedWeight({self.label!r}, shape={tuple(self.shape)})"


def turned(rotation: Rotation, seen: Params) -> Params:
    """The weights to run a network with, from their matrices `seen` in the bases of a rotation."""
    weights = {name: seen[name] for name in rotation.rest}
    for name, matrix in rotation.layers.items():
        layer, (out, *_) = _RotatedLayer(matrix, seen[name]), matrix.place.shape
        weights[name] = RotatedWeight(name, matrix.place.shape, layer)
        if matrix.place.bias is not None:
            weights[matrix.place.bias] = RotatedWeight(matrix.place.bias, (out,), layer)
    return {name: weights[name] for name in rotation.names}


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    x = plain(input)
    rotated = isinstance(weight, RotatedWeight) and _are_of_one_layer(weight, bias)
    if rotated and weight.layer.is_cheap(x):
        return weight.layer.linear(x)
    return F.linear(x, plain(weight), plain(bias))


def _are_of_one_layer(weight: RotatedWeight, bias: Any) -> bool:
    """Whether a weight and a bias, which may be None, are those of one layer."""
    names = weight.layer.place.weight, weight.layer.place.bias
    if bias is None:
        return names == (weight.label, None)
    same_layer = isinstance(bias, RotatedWeight) and bias.layer is weight.layer
    return same_layer and names == (weight.label, bias.label)


RotatedWeight.handlers = {F.linear: _linear}
