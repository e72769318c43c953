"""Diagonal and isotropic matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.tensors import vectors
from bayesrule.types import Number, Params, Rows


@dataclass(frozen=True)
class DiagonalMatrix(Matrix):
    """`diag(values)`: one number for each weight."""

    values: Params

    independent = True

    def matmul(self, vector: Params) -> Params:
        return vectors.mul(vector, self.values)

    def solve(self, vector: Params) -> Params:
        return vectors.div(vector, self.values)

    def inv_sqrt(self, noise: Params) -> Params:
        return vectors.mul_(vectors.rsqrt(self.values), noise)

    def logdet(self) -> Tensor:
        return torch.stack([v.log().sum() for v in self.values.values()]).sum()

    def diagonal(self) -> Params:
        return self.values

    def inverse_diagonal(self) -> Params:
        return vectors.reciprocal(self.values)

    def trace_solve(self, other: Matrix) -> Tensor:
        # The inverse is diagonal, so only the other's diagonal enters.
        return vectors.total(vectors.div(other.diagonal(), self.values))

    def output_covariance(self, rows: Rows) -> Tensor:
        return rows.gram(self.inverse_diagonal())

    def plus(self, other: DiagonalMatrix) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.add(self.values, other.values))

    def times(self, factor: Number) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.scale(self.values, factor))

    def damped(self, damping: float) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.shift(self.values, damping))

    def times_(self, factor: Number) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.scale_(self.values, factor))

    def descend_(self, point: Params, gradient: Params, rate: Number) -> Params:
        return vectors.addcdiv_(point, gradient, self.values, value=-rate)

    def lerp_(self, target: DiagonalMatrix, rate: Number) -> DiagonalMatrix:
        return DiagonalMatrix(target._mixed_into(self.values, rate))

    def _mixed_into(self, values: Params, rate: Number) -> Params:
        """`(1 − rate) values + rate diag`, which overwrites the values."""
        return vectors.lerp_(values, self.values, rate)

    def retract_(
        self, target: DiagonalMatrix, rate: Number, precision: DiagonalMatrix
    ) -> DiagonalMatrix:
        step = vectors.add_(target.values, self.values, alpha=-1.0)
        moved = vectors.add_(self.values, step, alpha=rate)
        bend = vectors.mul_(step, step)
        return DiagonalMatrix(vectors.addcdiv_(moved, bend, precision.values, value=0.5 * rate**2))

    def slope(self, std: Params) -> Params:
        return vectors.mul_({name: self.values[name] for name in std}, std)

    def second_moment(self, mean: Params) -> Params:
        return vectors.add(vectors.mul(mean, mean), self.inverse_diagonal())

    def anew(self) -> Self:
        return self  # It keeps no computed quantities.

    def only(self, names: tuple[str, ...]) -> DiagonalMatrix:
        return DiagonalMatrix({name: self.values[name] for name in names if name in self.values})

    def price_(self, offset: Params, gradient: Params) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.mul_(vectors.mul_(offset, gradient), self.values))


class SquareMatrix(DiagonalMatrix):
    """`diag(factor · vector²)`, computed on first use, before which the vector must not change.

    >>> SquareMatrix({"w": torch.tensor([1.0, 3.0])}, 2.0).values
    {'w': tensor([ 2., 18.])}
    """

    def __init__(self, vector: Params, factor: Number) -> None:
        self.__dict__["_vector"], self.__dict__["_factor"] = vector, factor
        self.__dict__["_versions"] = [value._version for value in vector.values()]

    def _unchanged(self) -> tuple[Params, Number]:
        vector = self.__dict__["_vector"]
        if [value._version for value in vector.values()] != self.__dict__["_versions"]:
            raise RuntimeError("The vector has changed before its square was computed.")
        return vector, self.__dict__["_factor"]

    @cached_property
    def values(self) -> Params:
        vector, factor = self._unchanged()
        return vectors.scale_(vectors.mul(vector, vector), factor)

    def _mixed_into(self, values: Params, rate: Number) -> Params:
        vector, factor = self._unchanged()
        if isinstance(rate, Tensor) or isinstance(factor, Tensor):
            # Each net of a stack may have a factor of its own.
            return super()._mixed_into(values, rate)
        return vectors.addcmul_(vectors.scale_(values, 1.0 - rate), vector, vector, rate * factor)


@dataclass(frozen=True)
class Diagonal(Structure):
    """One precision for each weight: the mean-field Gaussian."""

    counts_each = True
    independent = True
    elementwise = True
    stacks = True
    replays = True

    def identity(self, params: Params, scale: float) -> DiagonalMatrix:
        return DiagonalMatrix({k: torch.full_like(v, scale) for k, v in params.items()})

    def contract(self, rows: Rows) -> DiagonalMatrix:
        lazy = getattr(rows, "lazy_squares", None)
        return DiagonalMatrix(rows.squares()) if lazy is None else lazy()

    def project(self, matrix: Tensor, params: Params) -> DiagonalMatrix:
        return DiagonalMatrix(vectors.unflatten(matrix.diagonal(), vectors.shapes_of(params)))


@dataclass(frozen=True)
class IsotropicMatrix(Matrix):
    """`value · I`: one number for all weights."""

    value: Tensor
    shapes: vectors.Shapes

    independent = True

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def _full(self, value: Tensor) -> Params:
        # The axis of stacked nets, if there is one, stays in front.
        nets = value.shape
        return {
            name: value.reshape((*nets, *[1] * len(shape))).expand((*nets, *shape))
            for name, shape in self.shapes.items()
        }

    def _with(self, value: Tensor) -> Self:
        return replace(self, value=value)

    def matmul(self, vector: Params) -> Params:
        return vectors.scale(vector, self.value)

    def solve(self, vector: Params) -> Params:
        return {name: v / vectors.over(self.value, v) for name, v in vector.items()}

    def inv_sqrt(self, noise: Params) -> Params:
        root = self.value.sqrt()
        return {name: v / vectors.over(root, v) for name, v in noise.items()}

    def logdet(self) -> Tensor:
        return self.size * self.value.log()

    def diagonal(self) -> Params:
        return self._full(self.value)

    def inverse_diagonal(self) -> Params:
        return self._full(1.0 / self.value)

    def trace_solve(self, other: Matrix) -> Tensor:
        return vectors.total(other.diagonal()) / self.value

    def output_covariance(self, rows: Rows) -> Tensor:
        return rows.gram(self.inverse_diagonal())

    def plus(self, other: Self) -> Self:
        return self._with(self.value + other.value)

    def times(self, factor: Number) -> Self:
        return self._with(self.value * factor)

    def damped(self, damping: float) -> Self:
        return self._with(self.value + damping)

    def lerp_(self, target: Self, rate: Number) -> Self:
        return self._with(self.value.lerp(target.value, rate))

    def retract_(self, target: Self, rate: Number, precision: IsotropicMatrix) -> Self:
        step = target.value - self.value
        bend = 0.5 * rate**2 * step**2 / precision.value
        return self._with(self.value + rate * step + bend)

    def second_moment(self, mean: Params) -> Tensor:
        return vectors.dot(mean, mean) + self.size / self.value

    def only(self, names: tuple[str, ...]) -> Self:
        return replace(self, shapes={name: self.shapes[name] for name in names})

    def price_(self, offset: Params, gradient: Params) -> Self:
        return self._with(self.value * vectors.dot(offset, gradient) / self.size)


@dataclass(frozen=True)
class Isotropic(Structure):
    """One precision for all weights together."""

    independent = True
    replays = True

    def identity(self, params: Params, scale: float) -> IsotropicMatrix:
        like = next(iter(params.values()))
        value = torch.as_tensor(scale, dtype=like.dtype, device=like.device)
        return IsotropicMatrix(value, vectors.shapes_of(params))

    def contract(self, rows: Rows) -> IsotropicMatrix:
        squares = rows.squares()
        value = vectors.total(squares) / vectors.numel(squares)
        return IsotropicMatrix(value, vectors.shapes_of(squares))

    def project(self, matrix: Tensor, params: Params) -> IsotropicMatrix:
        return IsotropicMatrix(matrix.diagonal().mean(), vectors.shapes_of(params))


def only_diagonal(other: Matrix, whose: str) -> Params:
    """The diagonal of a diagonal matrix; a TypeError for others, as the rest would be lost."""
    if not isinstance(other, DiagonalMatrix | IsotropicMatrix):
        raise TypeError(
            f"The trace of {whose}⁻¹ P needs P of the same structure or diagonal, got "
            f"{type(other).__name__}."
        )
    return other.diagonal()
