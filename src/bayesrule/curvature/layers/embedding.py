"""Embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature.layers._base import Call, Layer


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


def embedding(
    out: Tensor,
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
