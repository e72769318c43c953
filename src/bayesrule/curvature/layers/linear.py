"""Linear layers, at one or many positions, and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature.layers._base import Layer, working_memory

# Working memory, in numbers, for products that would otherwise keep a copy for each example.
_BUDGET = 1 << 18


class LinearLayer(Layer):
    """`F.linear`: inputs (n, *, in), output gradients (n, *, out)."""

    is_product = True

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
        chunk = max(1, working_memory(g, _BUDGET) // (a.shape[-1] * g.shape[-1]))
        parts = zip(a.split(chunk), g.split(chunk), strict=True)
        return torch.stack([(gi.mT @ ai).square().sum(0) for ai, gi in parts]).sum(0)

    def products(self, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        vectors, n = g.shape[:2]
        a = self.input.reshape(n, -1, self.input.shape[-1])
        slopes = g.reshape(vectors, n, -1, g.shape[-1])
        # With several positions, the rows of a chunk may have to be formed.
        largest = vectors * a.shape[-1] * g.shape[-1] if a.shape[1] > 1 else 1
        chunk = max(1, working_memory(g, 4 * _BUDGET) // largest)
        return zip(a.split(chunk), slopes.split(chunk, dim=1), strict=True)

    def weight_gram(self, g: Tensor, weights: Tensor) -> Tensor:
        if g.ndim > 3:
            return self._gram_of_positions(g, weights)
        # Σ_oi w_oi g_vo g_v'o a_i² = g diag(W a²) gᵀ
        scale = self.input.square() @ weights.mT
        rows = g.transpose(0, 1)
        return (rows * scale.unsqueeze(1)) @ rows.mT

    def _gram_of_positions(self, g: Tensor, weights: Tensor) -> Tensor:
        """As `weight_gram`, a few examples at a time, because their rows have to be formed."""
        chunk = max(1, working_memory(g, _BUDGET) // (len(g) * weights.numel()))
        parts = zip(self.input.split(chunk), g.split(chunk, dim=1), strict=True)
        layers = ((LinearLayer(a, None, None), part) for a, part in parts)
        return torch.cat([Layer.weight_gram(layer, part, weights) for layer, part in layers])


def linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Layer:
    return LinearLayer(input.detach(), weight, bias)


@dataclass(frozen=True)
class EmbeddingLayer(Layer):
    """`F.embedding`: integer inputs (n, *), output gradients (n, *, dim)."""

    weight: Tensor
    padding: int | None

    def _merged(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients summed over equal tokens of an example: example, token and gradient."""
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
        example, token, sums = self._merged(g)
        rows = g.new_zeros(len(g), *self.weight.shape)
        rows[example, token] = sums
        return rows

    def bias_rows(self, g: Tensor) -> Tensor:
        raise TypeError("An embedding has no bias.")

    def weight_squares(self, g: Tensor) -> Tensor:
        _, token, sums = self._merged(g)
        return torch.zeros_like(self.weight).index_add_(0, token, sums.square())


def embedding(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Layer | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    padding = None if padding_idx is None else padding_idx % len(weight)
    return EmbeddingLayer(input, weight, None, padding)
