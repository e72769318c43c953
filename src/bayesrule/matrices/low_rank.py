"""Diagonal plus low rank: a few directions in which weights move together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.dense import DenseMatrix
from bayesrule.matrices.diagonal import only_diagonal
from bayesrule.tensors.vectors import Shapes, flatten, shapes_of, unflatten
from bayesrule.types import Number, Params, Rows


def truncate(columns: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`U` (P, rank) and `d` (P,) so that `U Uᵀ + diag(d)` is close to `C Cᵀ` and has its diagonal.

    Mishkin et al. (2018), SLANG, sec. 3.2: the leading eigenvectors are kept, and the diagonal of
    the rest is added to the diagonal part.
    """
    if columns.shape[1] <= rank:
        pad = columns.new_zeros(columns.shape[0], rank - columns.shape[1])
        return torch.cat([columns, pad], dim=1), columns.new_zeros(columns.shape[0])
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    kept = left[:, :rank] * values[:rank]
    rest = left[:, rank:] * values[rank:]
    return kept, rest.square().sum(1)


@dataclass(frozen=True)
class LowRankMatrix(Matrix):
    """`diag(d) + U Uᵀ` with `d` (P,) and `U` (P, rank)."""

    d: Tensor
    u: Tensor
    shapes: Shapes

    @cached_property
    def _white(self) -> tuple[Tensor, Tensor]:
        """Left singular vectors and values of `V = d^{-½} U`: `S = d^½ (I + V Vᵀ) d^½`."""
        left, values, _ = torch.linalg.svd(self.u / self.d.sqrt().unsqueeze(1), full_matrices=False)
        return left, values

    def _with(self, d: Tensor, u: Tensor) -> Self:
        return replace(self, d=d, u=u)

    def _apply(self, flat: Tensor, gain: Tensor) -> Tensor:
        """`(I + Q diag(gain) Qᵀ) x` for x (P,) or (..., P), Q the left singular vectors."""
        left, _ = self._white
        return flat + ((flat @ left) * gain) @ left.mT

    def _solve(self, flat: Tensor) -> Tensor:
        _, values = self._white
        gain = 1.0 / (1.0 + values**2) - 1.0
        return self._apply(flat / self.d.sqrt(), gain) / self.d.sqrt()

    def matmul(self, vector: Params) -> Params:
        flat = flatten(vector, self.shapes)
        return unflatten(self.d * flat + self.u @ (self.u.mT @ flat), self.shapes)

    def solve(self, vector: Params) -> Params:
        return unflatten(self._solve(flatten(vector, self.shapes)), self.shapes)

    def inv_sqrt(self, noise: Params) -> Params:
        _, values = self._white
        flat = self._apply(flatten(noise, self.shapes), torch.rsqrt(1.0 + values**2) - 1.0)
        return unflatten(flat / self.d.sqrt(), self.shapes)

    def logdet(self) -> Tensor:
        _, values = self._white
        return self.d.log().sum() + torch.log1p(values**2).sum()

    def diagonal(self) -> Params:
        return unflatten(self.d + self.u.square().sum(1), self.shapes)

    def _inverse_diagonal(self) -> Tensor:
        left, values = self._white
        shrink = values**2 / (1.0 + values**2)
        return (1.0 - left.square() @ shrink) / self.d

    def inverse_diagonal(self) -> Params:
        return unflatten(self._inverse_diagonal(), self.shapes)

    def trace_solve(self, other: Matrix) -> Tensor:
        if isinstance(other, LowRankMatrix):
            low_rank = (self._solve(other.u.mT) * other.u.mT).sum()
            return self._inverse_diagonal() @ other.d + low_rank
        if isinstance(other, DenseMatrix):
            return self._solve(other.values).diagonal().sum()
        diagonal = only_diagonal(other, "LowRankMatrix")
        return self._inverse_diagonal() @ flatten(diagonal, self.shapes)

    def output_covariance(self, rows: Rows) -> Tensor:
        jacobian = flatten(rows.per_example(), self.shapes, leading=2).transpose(0, 1)
        return jacobian @ self._solve(jacobian).mT

    def plus(self, other: Self) -> Self:
        u, rest = truncate(torch.cat([self.u, other.u], dim=1), self.u.shape[1])
        return self._with(self.d + other.d + rest, u)

    def times(self, factor: Number) -> Self:
        if factor < 0:
            raise ValueError(f"A low-rank matrix cannot be scaled by {factor}: U Uᵀ is positive.")
        return self._with(factor * self.d, factor**0.5 * self.u)

    def damped(self, damping: float) -> Self:
        return self._with(self.d + damping, self.u)

    def lerp_(self, target: Self, rate: Number) -> Self:
        return self.times(1.0 - float(rate)).plus(target.times(float(rate)))

    def retract_(self, target: Self, rate: Number, precision: LowRankMatrix) -> Self:
        # U Uᵀ is positive on both sides, so only the diagonal part can turn negative.
        step = target.d - self.d
        bend = 0.5 * rate**2 * step**2 / precision.d
        moved = self.lerp_(target, rate)
        return self._with(moved.d + bend, moved.u)

    def before_sum(self, rank: int, world_size: int) -> Self:
        """The columns (P, R) of this rank in their place among those of all, (P, R · world_size).

        `Σ U Uᵀ` is not `(Σ U)(Σ U)ᵀ`: columns go side by side, and `after_sum` truncates them.
        """
        size, columns = self.u.shape
        padded = self.u.new_zeros(size, world_size, columns)
        padded[:, rank] = self.u
        return self._with(self.d, padded.flatten(start_dim=1))

    def after_sum(self, rank: int, world_size: int) -> Self:
        """The sum over all ranks, truncated to the matrix's own rank again."""
        u, rest = truncate(self.u, self.u.shape[1] // world_size)
        return self._with(self.d + rest, u)


@dataclass(frozen=True)
class LowRank(Structure):
    """A diagonal and `rank` shared directions (SLANG)."""

    rank: int = 10

    only_positive = True
    piece_obstacle = "LowRank() keeps the largest directions of each; use Diagonal() or Dense()"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"LowRank needs a rank of at least 1, got {self.rank}.")

    def identity(self, params: Params, scale: float) -> LowRankMatrix:
        shapes = shapes_of(params)
        flat = flatten(params, shapes)
        rank = min(self.rank, len(flat))
        return LowRankMatrix(torch.full_like(flat, scale), flat.new_zeros(len(flat), rank), shapes)

    def contract(self, rows: Rows) -> LowRankMatrix:
        table = rows.per_example()
        shapes = shapes_of(table, leading=2)
        columns = flatten(table, shapes, leading=2).flatten(end_dim=1).mT
        return self._from_columns(columns, shapes)

    def project(self, matrix: Tensor, params: Params) -> LowRankMatrix:
        values, directions = torch.linalg.eigh(matrix)
        # Negative directions cannot be kept as U Uᵀ; their diagonal is, in d.
        columns = directions * values.clamp_min(0.0).sqrt()
        kept = self._from_columns(columns, shapes_of(params))
        negative = (directions.square() * values.clamp_max(0.0)).sum(1)
        return LowRankMatrix(kept.d + negative, kept.u, kept.shapes)

    def _from_columns(self, columns: Tensor, shapes: Shapes) -> LowRankMatrix:
        u, rest = truncate(columns, min(self.rank, columns.shape[0]))
        return LowRankMatrix(rest, u, shapes)
