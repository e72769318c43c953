"""The rows of one layer, as structures with one block for each layer contract them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.tensors.vectors import numel, shapes_of, unflatten
from bayesrule.types import Params, Rows


@dataclass(frozen=True)
class Place:
    """The parameters of one layer as a matrix (out, in), with the bias as the last input column.

    >>> place = Place("w", "b", (2, 3))
    >>> place.size
    (2, 4)
    """

    weight: str
    bias: str | None
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def size(self) -> tuple[int, int]:
        """`(out, in)`, the bias counted among the inputs."""
        return self.shape[0], math.prod(self.shape[1:]) + (self.bias is not None)

    def join(self, vector: Params) -> Tensor:
        """Named tensors (*leading, *shape) as one matrix, (*leading, out, in)."""
        weight = vector[self.weight]
        leading = weight.shape[: weight.ndim - len(self.shape)]
        matrix = weight.reshape(*leading, self.shape[0], -1)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, vector[self.bias].unsqueeze(-1)], dim=-1)

    def split(self, matrix: Tensor) -> Params:
        """A matrix (*leading, out, in) back into named tensors."""
        shape = (*matrix.shape[:-2], *self.shape)
        if self.bias is None:
            return {self.weight: matrix.reshape(shape)}
        last = matrix.shape[-1] - 1
        weight = matrix.narrow(-1, 0, last).reshape(shape)
        return {self.weight: weight, self.bias: matrix.select(-1, last).contiguous()}


def numbered(params: Params) -> Params:
    """The index of each entry among all, in the shapes of the parameters."""
    return unflatten(torch.arange(numel(params)), shapes_of(params))


class LayerRows(ABC):
    """Rows r_vn of one layer, each a matrix (out, in), for V vectors and n examples."""

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor, int | Tensor]:
        """`c A`, `S` and `c` with `Σ r rᵀ ≈ A ⊗ S`, where c is the number of inputs.

        Rows of several nets have these along a first axis; c may then be one for each, (num,).
        """

    @abstractmethod
    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        """`Σ_vn (leftᵀ r_vn right)²`, elementwise, (out, in)."""

    @abstractmethod
    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        """`Σ_oi gains (leftᵀ r_vn right) (leftᵀ r_v'n right)`, (n, V, V)."""


@dataclass(frozen=True)
class MatrixRows(LayerRows):
    """Rows that are given as a table, (V, n, out, in)."""

    table: Tensor

    @classmethod
    def of_matrix(cls, matrix: Tensor, size: tuple[int, int]) -> MatrixRows:
        """Rows of one example with `Σ r rᵀ` the positive part of a matrix (out·in, out·in)."""
        values, directions = torch.linalg.eigh(matrix)
        return cls((directions * values.clamp_min(0.0).sqrt()).mT.reshape(-1, 1, *size))

    def moments(self) -> tuple[Tensor, Tensor, int]:
        """The partial traces of `Σ r rᵀ`: `A ⊗ S = (Σ rᵀr) ⊗ (Σ r rᵀ) / Σ‖r‖²` has its trace.

        The mean of A's diagonal is 1, as in the identity of a new posterior, so that the two can be
        averaged.
        """
        rows, (count, _, width) = self.table.flatten(end_dim=1), self.table.shape[1:]
        inputs = torch.einsum("noi,noj->ij", rows, rows)
        outputs = torch.einsum("noi,npi->op", rows, rows)
        trace = inputs.diagonal().sum()
        # Without any rows it is zero, whatever the inputs' factor.
        scale = torch.where(trace > 0, count * width / trace, torch.zeros_like(trace))
        return inputs * scale, outputs / width, count

    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        return (left.mT @ self.table @ right).square().sum((0, 1))

    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        rotated = left.mT @ self.table @ right * gains.sqrt()
        flat = rotated.flatten(start_dim=2).transpose(0, 1)
        return flat @ flat.mT


Means = tuple[Tensor, Tensor, int | Tensor]


class Products(LayerRows):
    """Rows that are sums of products of a layer's inputs and output gradients."""

    @abstractmethod
    def means(self) -> Means:
        """Inputs (n, in) averaged over T positions; gradients (V, n, out), `Σ_t g / √T`; and n.

        Products of these between layers, with the moments of each layer, form a positive
        semi-definite matrix.
        """


Chunks = Callable[[], Iterator[tuple[Tensor, Tensor]]]

# Up to this many positions, products of pairs of positions cost less than rows.
_FEW = 2
# Working memory for rows, in numbers.
_BUDGET = 1 << 22


@dataclass(frozen=True)
class ProductRows(Products):
    """`r_vn = Σ_t g_vnt a_ntᵀ` from the inputs and the output gradients of a layer.

    `chunks()` iterates over the examples: inputs (m, T, in), gradients (V, m, T, out), T positions.
    """

    chunks: Chunks

    @classmethod
    def of(cls, a: Tensor, g: Tensor) -> ProductRows:
        """From all inputs (n, T, in) and gradients (V, n, T, out)."""
        size = _BUDGET // (len(g) * a.shape[2] * g.shape[3]) if a.shape[1] > _FEW else len(a)
        parts = list(zip(a.split(max(1, size)), g.split(max(1, size), dim=1), strict=True))
        return cls(lambda: iter(parts))

    def whole(self) -> tuple[Tensor, Tensor]:
        """All inputs (n, T, in) and gradients (V, n, T, out)."""
        inputs, gradients = zip(*self.chunks(), strict=True)
        return torch.cat(inputs), torch.cat(gradients, dim=1)

    def moments(self) -> tuple[Tensor, Tensor, int]:
        """`Σ_nt a aᵀ`, `Σ_vnt g gᵀ` and the number of inputs n·T.

        Martens & Grosse (2015), eq. 1; over positions Grosse & Martens (2016), theorem 1, where
        gradients at different positions count as uncorrelated.
        """
        inputs = outputs = None
        count = 0
        for a, g in self.chunks():
            flat, slopes = a.flatten(end_dim=-2), g.flatten(end_dim=-2)
            inputs, outputs = _with_square(inputs, flat), _with_square(outputs, slopes)
            count += len(flat)
        assert inputs is not None
        assert outputs is not None
        return inputs, outputs, count

    def means(self) -> Means:
        chunks = [(a.mean(1), g.sum(2) / g.shape[2] ** 0.5) for a, g in self.chunks()]
        inputs, slopes = zip(*chunks, strict=True)
        means = torch.cat(inputs)
        return means, torch.cat(slopes, dim=1), len(means)

    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        parts = [_product_squares(a @ right, g @ left) for a, g in self.chunks()]
        return sum(parts[1:], parts[0])

    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        return torch.cat([_product_gram(a, g, left, right, gains) for a, g in self.chunks()])


def _with_square(total: Tensor | None, x: Tensor) -> Tensor:
    """`total + xᵀ x`, added in place: a wide layer has many chunks and large squares."""
    return x.mT @ x if total is None else total.addmm_(x.mT, x)


def _product_squares(a: Tensor, g: Tensor) -> Tensor:
    if a.shape[1] > 1:
        return (g.mT @ a).square().sum((0, 1))
    # (g aᵀ)² = g² (a²)ᵀ: no row is ever formed.
    return g[:, :, 0].square().sum(0).mT @ a[:, 0].square()


def _product_gram(a: Tensor, g: Tensor, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
    if a.shape[1] > _FEW:
        flat = (_rotated_rows(a, g, left, right) * gains.sqrt()).flatten(start_dim=2)
        return flat @ flat.mT
    # Σ_oi k_oi g_vto a_ti g_v'uo a_ui = Σ_tu g_t diag(k (a_t a_u)) g_uᵀ: no row is ever formed.
    inputs, slopes = a @ right, (g @ left).transpose(0, 1)
    pairs = (inputs.unsqueeze(2) * inputs.unsqueeze(1)) @ gains.mT
    weighted = (slopes.unsqueeze(3) * pairs.unsqueeze(1)).sum(2)
    return weighted.flatten(start_dim=2) @ slopes.flatten(start_dim=2).mT


def _rotated_rows(a: Tensor, g: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`leftᵀ (Σ_t g_t a_tᵀ) right`, (n, V, out, in); each side is rotated where it is smaller."""
    vectors, n, positions, outs = g.shape
    inputs_first, slopes_first = positions <= vectors * outs, positions <= a.shape[2]
    inputs, slopes = a @ right if inputs_first else a, g @ left if slopes_first else g
    # One product for each example with all its vectors, so that the inputs are not copied.
    rows = slopes.permute(1, 0, 3, 2).reshape(n, vectors * outs, positions) @ inputs
    rows = (rows if inputs_first else rows @ right).reshape(n, vectors, outs, -1)
    return rows if slopes_first else left.mT @ rows


def rows_of(rows: Rows, place: Place) -> LayerRows:
    """The rows of one layer: products if it is called once, else a table of matrices."""
    products = rows.layer(place.weight, place.bias)
    return products or MatrixRows(place.join(rows.only(place.names).per_example()))
