"""Full matrices, for small nets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.diagonal import only_diagonal
from bayesrule.tensors import vectors
from bayesrule.tensors.vectors import Shapes, flatten, shapes_of, unflatten
from bayesrule.types import Number, Params, Rows


@dataclass(frozen=True)
class DenseMatrix(Matrix):
    """A full symmetric matrix (P, P) over the flattened parameters, in their order.

    The matrices of several nets can be stacked along a first axis, (num, P, P).
    """

    values: Tensor
    shapes: Shapes

    @cached_property
    def cholesky(self) -> Tensor:
        """The lower factor `L`, `S = L Lᵀ`."""
        factor, failed = torch.linalg.cholesky_ex(self.values)
        if failed.any():
            factor, failed = torch.linalg.cholesky_ex(self._beyond_rounding())
        if failed.any():
            raise ValueError(
                "A full matrix is not positive definite, so it cannot be a precision. A larger "
                "prior_precision or curvature=GGN() (never negative) mends this."
            )
        return factor

    def _beyond_rounding(self) -> Tensor:
        """The matrix with the rounding error of its largest entries added to the diagonal."""
        diagonal = torch.linalg.diagonal(self.values)
        size = diagonal.shape[-1] * torch.finfo(diagonal.dtype).eps * diagonal.amax(-1)
        eye = torch.eye(diagonal.shape[-1], dtype=diagonal.dtype, device=diagonal.device)
        return self.values + size[..., None, None] * eye

    def _flat(self, vector: Params) -> Tensor:
        return flatten(vector, self.shapes, leading=self.values.ndim - 2)

    def _with(self, values: Tensor) -> DenseMatrix:
        return DenseMatrix(values, self.shapes)

    def matmul(self, vector: Params) -> Params:
        column = self._flat(vector).unsqueeze(-1)
        return unflatten((self.values @ column).squeeze(-1), self.shapes)

    def solve(self, vector: Params) -> Params:
        column = self._flat(vector).unsqueeze(-1)
        return unflatten(torch.cholesky_solve(column, self.cholesky).squeeze(-1), self.shapes)

    def inv_sqrt(self, noise: Params) -> Params:
        column = self._flat(noise).unsqueeze(-1)
        # S = L Lᵀ, so L⁻ᵀ ε has the covariance L⁻ᵀ L⁻¹ = S⁻¹; L⁻¹ ε would not.
        draw = torch.linalg.solve_triangular(self.cholesky.mT, column, upper=True)
        return unflatten(draw.squeeze(-1), self.shapes)

    def logdet(self) -> Tensor:
        return 2.0 * torch.linalg.diagonal(self.cholesky).log().sum(-1)

    def diagonal(self) -> Params:
        return unflatten(torch.linalg.diagonal(self.values), self.shapes)

    def inverse_diagonal(self) -> Params:
        return unflatten(torch.linalg.diagonal(torch.cholesky_inverse(self.cholesky)), self.shapes)

    def trace_solve(self, other: Matrix) -> Tensor:
        if isinstance(other, DenseMatrix):
            return torch.cholesky_solve(other.values, self.cholesky).diagonal().sum()
        inverse = torch.cholesky_inverse(self.cholesky).diagonal()
        return inverse @ self._flat(only_diagonal(other, "DenseMatrix"))

    def output_covariance(self, rows: Rows) -> Tensor:
        jacobian = flatten(rows.per_example(), self.shapes, leading=2).transpose(0, 1)
        white = torch.linalg.solve_triangular(self.cholesky, jacobian.mT, upper=False)
        return white.mT @ white

    def second_moment(self, mean: Params) -> Tensor:
        flat = flatten(mean, self.shapes)
        return torch.outer(flat, flat) + torch.cholesky_inverse(self.cholesky)

    def plus(self, other: DenseMatrix) -> DenseMatrix:
        return self._with(self.values + other.values)

    def times(self, factor: Number) -> DenseMatrix:
        return self._with(self.values * vectors.over(factor, self.values))

    def damped(self, damping: float) -> DenseMatrix:
        values = self.values.clone()
        diagonal = torch.linalg.diagonal(values)
        diagonal.add_(vectors.over(damping, diagonal))
        return self._with(values)

    def lerp_(self, target: DenseMatrix, rate: Number) -> DenseMatrix:
        return self._with(self.values.lerp(target.values, rate))

    def retract_(self, target: DenseMatrix, rate: Number, precision: DenseMatrix) -> DenseMatrix:
        step = target.values - self.values
        bend = step @ torch.cholesky_solve(step, precision.cholesky)
        moved = self.values + rate * step + 0.5 * rate**2 * bend
        return self._with(0.5 * (moved + moved.mT))

    def price_(self, offset: Params, gradient: Params) -> DenseMatrix:
        product = torch.outer(self.values @ self._flat(offset), self._flat(gradient))
        return self._with(0.5 * (product + product.mT))


@dataclass(frozen=True)
class Dense(Structure):
    """Every pair of weights is correlated; memory grows with the square of their number."""

    limit: int = 20_000

    says_if_negative = True
    stacks = True

    def identity(self, params: Params, scale: float) -> DenseMatrix:
        size = sum(v.numel() for v in params.values())
        if size > self.limit:
            raise ValueError(
                f"A full matrix over {size:,} parameters takes {size**2 * 4 / 1e9:,.1f} GB; the "
                f"limit is {self.limit:,} parameters. Use Diagonal(), LowRank(rank), a last-layer "
                f"posterior, or Dense(limit={size}) (limit={size} of noisy_full)."
            )
        like = next(iter(params.values()))
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        return DenseMatrix(scale * eye, shapes_of(params))

    def contract(self, rows: Rows) -> DenseMatrix:
        # Rows of stacked nets have one more axis in front.
        table, axes = rows.per_example(), getattr(rows, "axes", 0)
        shapes = shapes_of(table, leading=axes + 2)
        flat = flatten(table, shapes, leading=axes + 2).flatten(axes, axes + 1)
        return DenseMatrix(flat.mT @ flat, shapes)

    def project(self, matrix: Tensor, params: Params) -> DenseMatrix:
        return DenseMatrix(matrix, shapes_of(params, leading=matrix.ndim - 2))
