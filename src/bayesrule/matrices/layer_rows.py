"""Rows seen layer by layer: what structures with a block for each layer contract."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrule.types import Params, Rows

Sizes = dict[str, tuple[int, ...]]


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
        """The parameters' names."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def size(self) -> tuple[int, int]:
        """`(out, in)`, the bias counted among the inputs."""
        return self.shape[0], math.prod(self.shape[1:]) + (self.bias is not None)

    def join(self, vector: Params) -> Tensor:
        """Named tensors (*leading, *shape) as one, (*leading, out, in)."""
        weight = vector[self.weight]
        leading = weight.shape[: weight.ndim - len(self.shape)]
        matrix = weight.reshape(*leading, self.shape[0], -1)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, vector[self.bias].unsqueeze(-1)], dim=-1)

    def split(self, matrix: Tensor) -> Params:
        """A matrix (out, in) back into named tensors."""
        if self.bias is None:
            return {self.weight: matrix.reshape(self.shape)}
        weight = matrix[:, :-1].reshape(self.shape)
        return {self.weight: weight, self.bias: matrix[:, -1].contiguous()}


def numbered(params: Params) -> Params:
    """The place of each entry among all, in the shapes of the parameters."""
    places = torch.arange(sum(v.numel() for v in params.values()))
    parts = places.split([v.numel() for v in params.values()])
    return {k: part.reshape(v.shape) for (k, v), part in zip(params.items(), parts, strict=True)}


class LayerRows(ABC):
    """Rows r_vn of one layer, each a matrix (out, in), for V vectors and n examples."""

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor, int]:
        """`c A`, `S` and `c` with `Σ r rᵀ ≈ A ⊗ S`: of inputs, of outputs, and how many."""

    @abstractmethod
    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        """`Σ_vn (leftᵀ r_vn right)²`, elementwise, (out, in)."""

    @abstractmethod
    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        """`Σ_oi gains (leftᵀ r_vn right) (leftᵀ r_v'n right)`, (n, V, V)."""


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum((0, 1))


def _gram(rows: Tensor, gains: Tensor) -> Tensor:
    flat = (rows * gains.sqrt()).flatten(start_dim=2).transpose(0, 1)
    return flat @ flat.mT


@dataclass(frozen=True)
class MatrixRows(LayerRows):
    """Rows given outright, (V, n, out, in)."""

    table: Tensor

    @classmethod
    def of_matrix(cls, matrix: Tensor, size: tuple[int, int]) -> MatrixRows:
        """Rows of one example with `Σ r rᵀ` the positive part of a matrix (out·in, out·in)."""
        values, directions = torch.linalg.eigh(matrix)
        return cls((directions * values.clamp_min(0.0).sqrt()).mT.reshape(-1, 1, *size))

    def moments(self) -> tuple[Tensor, Tensor, int]:
        """The partial traces of `Σ r rᵀ`: `A ⊗ S = (Σ rᵀr) ⊗ (Σ r rᵀ) / Σ‖r‖²` has its trace.

        The mean of A's diagonal is 1, as for a new belief, so that both can be averaged.
        """
        rows, (count, _, width) = self.table.flatten(end_dim=1), self.table.shape[1:]
        inputs = torch.einsum("noi,noj->ij", rows, rows)
        outputs = torch.einsum("noi,npi->op", rows, rows)
        trace = inputs.diagonal().sum()
        # No rows at all: zero, whatever the inputs' factor is.
        scale = torch.where(trace > 0, count * width / trace, torch.zeros_like(trace))
        return inputs * scale, outputs / width, count

    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        return _squares(left.mT @ self.table @ right)

    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        return _gram(left.mT @ self.table @ right, gains)


Chunks = Callable[[], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class ProductRows(LayerRows):
    """`r_vn = Σ_t g_vnt a_ntᵀ` from the inputs and the output gradients of a layer.

    `chunks()` goes over the examples: inputs (m, T, in), gradients (V, m, T, out) at T positions.
    """

    chunks: Chunks

    def moments(self) -> tuple[Tensor, Tensor, int]:
        """`Σ_nt a aᵀ`, `Σ_vnt g gᵀ` and the number of inputs n·T.

        Martens & Grosse (2015), eq. 1; over positions Grosse & Martens (2016), theorem 1, which
        takes gradients at different positions as uncorrelated.
        """
        inputs, outputs, count = [], [], 0
        for a, g in self.chunks():
            flat, slopes = a.flatten(end_dim=-2), g.flatten(end_dim=-2)
            inputs.append(flat.mT @ flat)
            outputs.append(slopes.mT @ slopes)
            count += len(flat)
        return sum(inputs[1:], inputs[0]), sum(outputs[1:], outputs[0]), count

    def means(self) -> tuple[Tensor, Tensor]:
        """Inputs (n, in) averaged over the T positions; gradients (V, n, out), `Σ_t g / √T`.

        Their products between layers and the moments of each layer are together never negative.
        """
        each = [(a.mean(1), g.sum(2) / g.shape[2] ** 0.5) for a, g in self.chunks()]
        return torch.cat([a for a, _ in each]), torch.cat([g for _, g in each], dim=1)

    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        parts = [_product_squares(a @ right, g @ left) for a, g in self.chunks()]
        return sum(parts[1:], parts[0])

    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        return torch.cat([_product_gram(a @ right, g @ left, gains) for a, g in self.chunks()])


def _product_squares(a: Tensor, g: Tensor) -> Tensor:
    if a.shape[1] > 1:
        return _squares(g.mT @ a)
    # (g aᵀ)² = g² (a²)ᵀ: no row is ever formed.
    return g[:, :, 0].square().sum(0).mT @ a[:, 0].square()


def _product_gram(a: Tensor, g: Tensor, gains: Tensor) -> Tensor:
    if a.shape[1] > 1:
        return _gram(g.mT @ a, gains)
    # Σ_oi k_oi g_vo g_v'o a_i² = g diag(k a²) gᵀ
    scale, slopes = a[:, 0].square() @ gains.mT, g[:, :, 0].transpose(0, 1)
    return (slopes * scale.unsqueeze(1)) @ slopes.mT


@runtime_checkable
class LayeredRows(Rows, Protocol):
    """Rows that know the layers they come from."""

    @property
    def shapes(self) -> Sizes:
        """The shapes of the parameters by name."""

    def only(self, names: tuple[str, ...]) -> LayeredRows:
        """The rows of the named parameters alone."""

    def layer(self, weight: str, bias: str | None) -> ProductRows | None:
        """The rows of a layer from its one call, None where there is no such call."""

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        """Why the layers with these weights are no chain in this order, None where they are."""


@dataclass(frozen=True)
class PlainRows:
    """A table of rows {name: (V, n, *shape)} of which no layers are known."""

    table: Params

    @property
    def shapes(self) -> Sizes:
        return {name: tuple(rows.shape[2:]) for name, rows in self.table.items()}

    def squares(self) -> Params:
        return {name: rows.square().sum((0, 1)) for name, rows in self.table.items()}

    def per_example(self) -> Params:
        return self.table

    def gram(self, weights: Params) -> Tensor:
        flat = {name: self.table[name].flatten(start_dim=2).transpose(0, 1) for name in weights}
        grams = [(flat[k] * weight.reshape(-1)) @ flat[k].mT for k, weight in weights.items()]
        return sum(grams[1:], grams[0])

    def only(self, names: tuple[str, ...]) -> PlainRows:
        return PlainRows({name: self.table[name] for name in names})

    def layer(self, weight: str, bias: str | None) -> None:
        return None

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        return "these rows do not know the layers they come from"


def layered(rows: Rows) -> LayeredRows:
    """The rows with their layers, or as a plain table where they know of none."""
    return rows if isinstance(rows, LayeredRows) else PlainRows(rows.per_example())


def rows_of(rows: LayeredRows, place: Place) -> LayerRows:
    """The rows of one layer: products where its call is known, a table of matrices elsewhere."""
    known = rows.layer(place.weight, place.bias)
    return known or MatrixRows(place.join(rows.only(place.names).per_example()))
