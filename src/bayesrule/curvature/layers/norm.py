"""Batch, layer and group norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.curvature.layers._base import Layer


@dataclass(frozen=True)
class LayerNormLayer(Layer):
    """The affine part of layer norm over the last axes, which have this `shape`."""

    shape: list[int]
    eps: float

    def weight_rows(self, g: Tensor) -> Tensor:
        return self.bias_rows(g * functional.layer_norm(self.input, self.shape, eps=self.eps))

    def bias_rows(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), -1, *self.shape).sum(1)


@dataclass(frozen=True)
class ChannelNormLayer(Layer):
    """The affine part of batch and group norm, with one weight for each channel.

    `statistics` gives mean and inverse standard deviation, (C,) or (n, C). With these, the weight's
    gradient `Σ g x̂` is `(Σ g x − mean Σ g) / std`, without forming x̂.
    """

    statistics: Callable[[Tensor], tuple[Tensor, Tensor]]

    def weight_rows(self, g: Tensor) -> Tensor:
        mean, inverse = self.statistics(self.input)
        if g.ndim == 2:
            return g * (self.input - mean) * inverse
        flat, x = g.flatten(start_dim=2), self.input.flatten(start_dim=2)
        return (torch.linalg.vecdot(flat, x) - mean * flat.sum(2)) * inverse

    def bias_rows(self, g: Tensor) -> Tensor:
        return g if g.ndim == 2 else g.flatten(start_dim=2).sum(2)


def batch_norm(
    out: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Layer:
    # What torch saves for its own backward pass, if it does; otherwise computed when needed.
    mean, inverse = (getattr(out.grad_fn, f"_saved_result{i}", None) for i in (1, 2))

    def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
        if not training and running_mean is not None and running_var is not None:
            return running_mean, (running_var + eps).rsqrt()
        if isinstance(mean, Tensor) and isinstance(inverse, Tensor) and mean.numel():
            return mean, inverse
        return _moments(x, [0, *range(2, x.ndim)], eps)

    return ChannelNormLayer(input.detach(), weight, bias, statistics)


def layer_norm(
    out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Layer:
    return LayerNormLayer(input.detach(), weight, bias, list(normalized_shape), eps)


def group_norm(
    out: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Layer:
    def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, inverse = _moments(x.reshape(len(x), num_groups, -1), [2], eps)
        size = x.shape[1] // num_groups
        return mean.repeat_interleave(size, 1), inverse.repeat_interleave(size, 1)

    return ChannelNormLayer(input.detach(), weight, bias, statistics)


def _moments(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, axes, correction=0)
    return mean, (variance + eps).rsqrt()
