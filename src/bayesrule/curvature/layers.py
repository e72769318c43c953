"""Per-example gradients of known layers from their inputs and the gradients of their outputs.

Each layer is a function of its recorded input and of `g`, the gradient of its output, (n, ...) with
examples first; what it returns holds one gradient for each example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Working memory, in numbers, for products that would otherwise hold a copy for each example.
_BUDGET = 1 << 18


@dataclass(frozen=True)
class Layer(ABC):
    """One recorded call of a layer; `weight` and `bias` tell which parameters it had."""

    input: Tensor
    weight: Tensor | None

    @abstractmethod
    def weight_rows(self, g: Tensor) -> Tensor:
        """The gradient of the weight for each example, (n, *weight.shape)."""

    @abstractmethod
    def bias_rows(self, g: Tensor) -> Tensor:
        """The gradient of the bias for each example, (n, *bias.shape)."""

    def weight_squares(self, g: Tensor) -> Tensor:
        """`Σ_n` of the squared weight gradients, (*weight.shape)."""
        return self.weight_rows(g).square().sum(0)

    def weight_gram(self, g: Tensor, weights: Tensor) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np` of each example for g (V, n, ...), (n, V, V)."""
        rows = torch.stack([self.weight_rows(one).flatten(start_dim=1) for one in g], dim=1)
        return (rows * weights.reshape(-1)) @ rows.mT


class LinearLayer(Layer):
    """`F.linear`: inputs (n, *, in), output gradients (n, *, out)."""

    def _positions(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Input and output gradient with all positions on one axis, (n, T, in) and (n, T, out)."""
        n = len(g)
        return self.input.reshape(n, -1, self.input.shape[-1]), g.reshape(n, -1, g.shape[-1])

    def weight_rows(self, g: Tensor) -> Tensor:
        a, g = self._positions(g)
        return g.mT @ a

    def bias_rows(self, g: Tensor) -> Tensor:
        return self._positions(g)[1].sum(1)

    def weight_squares(self, g: Tensor) -> Tensor:
        a, g = self._positions(g)
        if a.shape[1] == 1:
            # (g aᵀ)² = g² (a²)ᵀ: no gradient of a single example is ever formed.
            return g[:, 0].square().mT @ a[:, 0].square()
        chunk = max(1, _BUDGET // (a.shape[-1] * g.shape[-1]))
        parts = zip(a.split(chunk), g.split(chunk), strict=True)
        return torch.stack([(gi.mT @ ai).square().sum(0) for ai, gi in parts]).sum(0)

    def weight_gram(self, g: Tensor, weights: Tensor) -> Tensor:
        if g.ndim > 3:
            return self._gram_of_positions(g, weights)
        # Σ_oi w_oi g_vo g_v'o a_i² = g diag(W a²) gᵀ
        scale = self.input.square() @ weights.mT
        rows = g.transpose(0, 1)
        return (rows * scale.unsqueeze(1)) @ rows.mT

    def _gram_of_positions(self, g: Tensor, weights: Tensor) -> Tensor:
        """As `weight_gram`, a few examples at a time: their rows have to be formed."""
        chunk = max(1, _BUDGET // (len(g) * weights.numel()))
        parts = zip(self.input.split(chunk), g.split(chunk, dim=1), strict=True)
        return torch.cat([Layer.weight_gram(LinearLayer(a, None), b, weights) for a, b in parts])


@dataclass(frozen=True)
class ConvLayer(Layer):
    """`F.conv1d` and `F.conv2d`: inputs (n, C, *), output gradients (n, O, *)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def _patches(self, a: Tensor) -> Tensor:
        """The patches under the kernel, (n, groups, C/groups·k, positions)."""
        assert self.weight is not None
        kernel = tuple(self.weight.shape[2:])
        dilation, padding, stride = self.dilation, self.padding, self.stride
        if a.ndim == 3:
            a, kernel = a.unsqueeze(2), (1, *kernel)
            dilation, padding, stride = (1, *dilation), (0, *padding), (1, *stride)
        patches = functional.unfold(a, kernel, dilation, padding, stride)
        return patches.reshape(len(a), self.groups, -1, patches.shape[-1])

    def _rows(self, a: Tensor, g: Tensor) -> Tensor:
        outputs = g.reshape(len(g), self.groups, g.shape[1] // self.groups, -1)
        return outputs @ self._patches(a).mT

    def weight_rows(self, g: Tensor) -> Tensor:
        assert self.weight is not None
        return self._rows(self.input, g).reshape(len(g), *self.weight.shape)

    def bias_rows(self, g: Tensor) -> Tensor:
        return g.flatten(start_dim=2).sum(2)

    def weight_squares(self, g: Tensor) -> Tensor:
        assert self.weight is not None
        squares = self._rows(self.input, g).square().sum(0)
        return squares.reshape(self.weight.shape)


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


@dataclass(frozen=True)
class EmbeddingLayer(Layer):
    """`F.embedding`: integer inputs (n, *), output gradients (n, *, dim)."""

    padding: int | None

    def _merged(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients summed over equal tokens of one example: example, token and gradient."""
        assert self.weight is not None
        size, n = len(self.weight), len(g)
        if self.padding is not None:
            g = g.masked_fill((self.input == self.padding).unsqueeze(-1), 0.0)
        example = torch.arange(n, device=g.device).unsqueeze(1)
        keys = (example * size + self.input.reshape(n, -1)).reshape(-1)
        unique, place = keys.unique(return_inverse=True)
        sums = g.new_zeros(len(unique), g.shape[-1])
        sums.index_add_(0, place, g.reshape(-1, g.shape[-1]))
        return unique // size, unique % size, sums

    def weight_rows(self, g: Tensor) -> Tensor:
        assert self.weight is not None
        example, token, sums = self._merged(g)
        rows = g.new_zeros(len(g), *self.weight.shape)
        rows[example, token] = sums
        return rows

    def bias_rows(self, g: Tensor) -> Tensor:
        raise TypeError("An embedding has no bias.")

    def weight_squares(self, g: Tensor) -> Tensor:
        assert self.weight is not None
        _, token, sums = self._merged(g)
        return torch.zeros_like(self.weight).index_add_(0, token, sums.square())


@dataclass(frozen=True)
class Call:
    """A call of a known function, seen as a layer with a weight and perhaps a bias."""

    layer: Layer
    weight: Tensor | None
    bias: Tensor | None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call(LinearLayer(input.detach(), weight), weight, bias)


def _conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call | None:
    dims = weight.ndim - 2

    def per_axis(value: Any) -> tuple[int, ...]:
        return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))

    if isinstance(padding, str):
        wide = zip(per_axis(dilation), weight.shape[2:], strict=True)
        total = [d * (k - 1) if padding == "same" else 0 for d, k in wide]
        if any(t % 2 for t in total):
            return None
        padding = tuple(t // 2 for t in total)
    if input.ndim != weight.ndim:
        return None
    geometry = per_axis(stride), per_axis(padding), per_axis(dilation)
    return Call(ConvLayer(input.detach(), weight, *geometry, groups), weight, bias)


def _norm(input: Tensor, weight: Any, bias: Any, normalise: Any, trailing: int = 0) -> Call:
    return Call(NormLayer(input.detach(), weight, normalise, trailing), weight, bias)


def _batch_norm(
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


def _layer_norm(
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


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call:
    def normalise(x: Tensor) -> Tensor:
        return functional.group_norm(x, num_groups, eps=eps)

    return _norm(input, weight, bias, normalise)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    return Call(EmbeddingLayer(input, weight, padding), weight, None)


LAYERS: dict[Callable[..., Any], Callable[..., Call | None]] = {
    functional.linear: _linear,
    functional.conv1d: _conv,
    functional.conv2d: _conv,
    functional.batch_norm: _batch_norm,
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    functional.embedding: _embedding,
}
"""Functions whose calls are understood; parameters used anywhere else go through vmap."""
