"""A structure over some of the parameters; the others are held as known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.layer_rows import LayeredRows
from bayesrule.types import Params, Rows


def pick(params: Params, names: tuple[str, ...]) -> Params:
    """Only the named parameters."""
    return {name: params[name] for name in names}


@dataclass(frozen=True)
class _PickedRows:
    """Rows restricted to the named parameters."""

    rows: Rows
    names: tuple[str, ...]

    def squares(self) -> Params:
        return pick(self.rows.squares(), self.names)

    def per_example(self) -> Params:
        return pick(self.rows.per_example(), self.names)

    def gram(self, weights: Params) -> Tensor:
        return self.rows.gram(weights)


def pick_rows(rows: Rows, names: tuple[str, ...]) -> Rows:
    """The rows of the named parameters, with their layers where these are known."""
    return rows.only(names) if isinstance(rows, LayeredRows) else _PickedRows(rows, names)


@dataclass(frozen=True)
class SubsetMatrix(Matrix):
    """A matrix over the named parameters; the rest has infinite precision, that is no variance."""

    inner: Matrix
    names: tuple[str, ...]

    def _with(self, inner: Matrix) -> SubsetMatrix:
        return SubsetMatrix(inner, self.names)

    def _fill(self, part: Params, like: Params) -> Params:
        return {k: part[k] if k in part else torch.zeros_like(v) for k, v in like.items()}

    def matmul(self, vector: Params) -> Params:
        return self._fill(self.inner.matmul(pick(vector, self.names)), vector)

    def solve(self, vector: Params) -> Params:
        return self._fill(self.inner.solve(pick(vector, self.names)), vector)

    def inv_sqrt(self, noise: Params) -> Params:
        return self._fill(self.inner.inv_sqrt(pick(noise, self.names)), noise)

    def logdet(self) -> Tensor:
        return self.inner.logdet()

    def diagonal(self) -> Params:
        return self.inner.diagonal()

    def inverse_diagonal(self) -> Params:
        return self.inner.inverse_diagonal()

    def trace_solve(self, other: Matrix) -> Tensor:
        return self.inner.trace_solve(other.inner if isinstance(other, SubsetMatrix) else other)

    def output_covariance(self, rows: Rows) -> Tensor:
        return self.inner.output_covariance(pick_rows(rows, self.names))

    def plus(self, other: SubsetMatrix) -> SubsetMatrix:
        return self._with(self.inner.plus(other.inner))

    def times(self, factor: float) -> SubsetMatrix:
        return self._with(self.inner.times(factor))

    def damped(self, damping: float) -> SubsetMatrix:
        return self._with(self.inner.damped(damping))

    def lerp(self, target: SubsetMatrix, rate: float | Tensor) -> SubsetMatrix:
        return self._with(self.inner.lerp(target.inner, rate))

    def retract(self, target: SubsetMatrix, rate: float, damping: float) -> SubsetMatrix:
        return self._with(self.inner.retract(target.inner, rate, damping))

    def price(self, offset: Params, gradient: Params) -> SubsetMatrix:
        names = self.names
        return self._with(self.inner.price(pick(offset, names), pick(gradient, names)))


@dataclass(frozen=True)
class Subset(Structure):
    """The structure `inner` over the named parameters only, such as those of the last layer."""

    inner: Structure
    names: tuple[str, ...]

    def for_model(self, model: nn.Module) -> Subset:
        return replace(self, inner=self.inner.for_model(model))

    def identity(self, params: Params, scale: float) -> SubsetMatrix:
        unknown = [name for name in self.names if name not in params]
        if unknown or not self.names:
            raise ValueError(
                f"Subset names {unknown or 'nothing'}; the parameters are {', '.join(params)}."
            )
        return SubsetMatrix(self.inner.identity(pick(params, self.names), scale), self.names)

    def contract(self, rows: Rows) -> SubsetMatrix:
        return SubsetMatrix(self.inner.contract(pick_rows(rows, self.names)), self.names)

    def project(self, matrix: Tensor, params: Params) -> SubsetMatrix:
        places = torch.arange(len(matrix), device=matrix.device)
        parts = dict(zip(params, places.split([v.numel() for v in params.values()]), strict=True))
        # In the order of the names, as `identity` and `contract` have it.
        keep = torch.cat([parts[name] for name in self.names])
        part = matrix[keep][:, keep]
        return SubsetMatrix(self.inner.project(part, pick(params, self.names)), self.names)
