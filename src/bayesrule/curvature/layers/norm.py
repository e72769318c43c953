"""Batch, layer and group norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from bayesrule.curvature.layers._base import Call, Layer


@dataclass(frozen=True)
class NormLayer(Layer):
    """Batch, layer and group norm: the affine part of `x̂ ∘ weight + bias`.

    `trailing` is the number of last axes that the weight covers; 0 means the channels, axis 1.
    """

    normalise: Callable[[Tensor], Tensor]
    trailing: int

    def _sum_positions(self, values: Tensor) -> Tensor:
        if self.trailing:
            shape = values.shape[values.ndim - self.trailing :]
            return values.reshape(len(values), -1, *shape).sum(1)
        return values.flatten(start_dim=2).sum(2) if values.ndim > 2 else values

    def weight_rows(self, g: Tensor) -> Tensor:
        return self._sum_positions(g * self.normalise(self.input))

    def bias_rows(self, g: Tensor) -> Tensor:
        return self._sum_positions(g)


def _norm(input: Tensor, weight: Any, bias: Any, normalise: Any, trailing: int = 0) -> Call:
    return Call(NormLayer(input.detach(), weight, normalise, trailing), weight, bias)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call:
    # In training the statistics are those of the batch; the running ones must not move twice.
    mean, var = (None, None) if training else (running_mean, running_var)

    def normalise(x: Tensor) -> Tensor:
        return functional.batch_norm(x, mean, var, training=training, eps=eps)

    return _norm(input, weight, bias, normalise)


def layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    shape = list(normalized_shape)

    def normalise(x: Tensor) -> Tensor:
        return functional.layer_norm(x, shape, eps=eps)

    return _norm(input, weight, bias, normalise, trailing=len(shape))


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    def normalise(x: Tensor) -> Tensor:
        return functional.group_norm(x, num_groups, eps=eps)

    return _norm(input, weight, bias, normalise)
