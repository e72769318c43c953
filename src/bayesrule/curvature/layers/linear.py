"""Linear layers, at one position or many."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayesrule.curvature.layers._base import Call, Layer

# Working memory, in numbers, for products that would otherwise hold a copy for each example.
_BUDGET = 1 << 18


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

    @property
    def is_product(self) -> bool:
        return True

    def products(self, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        vectors, n = g.shape[:2]
        a = self.input.reshape(n, -1, self.input.shape[-1])
        slopes = g.reshape(vectors, n, -1, g.shape[-1])
        # At several positions the rows of a part may have to be formed.
        largest = vectors * a.shape[-1] * g.shape[-1] if a.shape[1] > 1 else 1
        chunk = max(1, 4 * _BUDGET // largest)
        return zip(a.split(chunk), slopes.split(chunk, dim=1), strict=True)

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


def linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call(LinearLayer(input.detach(), weight), weight, bias)
