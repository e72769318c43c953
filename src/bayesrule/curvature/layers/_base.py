"""The contract of a layer whose per-example gradients are known.

Each method is a function of the recorded input and of `g`, the gradient of the output, (n, ...)
with examples first; rows hold one gradient for each example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer(ABC):
    """One recorded call of a known function, as a layer with a weight and perhaps a bias."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None

    forms_rows: ClassVar[bool] = False
    """Whether squares are computed from rows, so that the sum of rows is a cheap gradient, too."""
    is_product: ClassVar[bool] = False
    """Whether rows are sums of products of inputs and output gradients, given by `products`."""

    @abstractmethod
    def weight_rows(self, g: Tensor) -> Tensor:
        """The gradient of the weight for each example, (n, *weight.shape)."""

    @abstractmethod
    def bias_rows(self, g: Tensor) -> Tensor:
        """The gradient of the bias for each example, (n, *bias.shape)."""

    def weight_squares(self, g: Tensor) -> Tensor:
        """`Σ_n` of the squared weight gradients, (*weight.shape)."""
        return self.weight_rows(g).square().sum(0)

    def weight_sums(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """`Σ_n` of the squared weight gradients, and of the gradients themselves."""
        rows = self.weight_rows(g)
        return rows.square().sum(0), rows.sum(0)

    def products(self, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (m, T, in) and output gradients (V, m, T, out), some examples at a time.

        For g (V, n, ...); the rows of the weight, (out, in), are `Σ_t g_t a_tᵀ`.
        """
        raise TypeError(f"{type(self).__name__} is no sum of products.")

    def weight_gram(self, g: Tensor, weights: Tensor) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np` of each example for g (V, n, ...), (n, V, V)."""
        rows = torch.stack([self.weight_rows(v).flatten(start_dim=1) for v in g], dim=1)
        return (rows * weights.reshape(-1)) @ rows.mT


def working_memory(like: Tensor, on_cpu: int) -> int:
    """How many numbers to work on at a time: as many as fit a CPU's cache, or 512 MB elsewhere.

    The few examples whose patches or rows stay in a cache do not keep a GPU busy.
    """
    return on_cpu if like.device.type == "cpu" else 1 << 27
