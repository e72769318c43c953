"""Parameters that are held as known: no variance, and no part in any step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.tensors import vectors
from bayesrule.types import Params, Rows


@dataclass(frozen=True)
class KnownMatrix(Matrix):
    """A precision without end: every product with it or its inverse is taken as zero."""

    independent = True

    def matmul(self, vector: Params) -> Params:
        return vectors.zeros_like(vector)

    def solve(self, vector: Params) -> Params:
        return vectors.zeros_like(vector)

    def inv_sqrt(self, noise: Params) -> Params:
        return vectors.zeros_like(noise)

    def logdet(self) -> Tensor:
        return torch.zeros(())

    def diagonal(self) -> Params:
        return {}

    def inverse_diagonal(self) -> Params:
        return {}

    def trace_solve(self, other: Matrix) -> Tensor:
        return torch.zeros(())

    def output_covariance(self, rows: Rows) -> Tensor:
        return torch.zeros(())

    def plus(self, other: KnownMatrix) -> KnownMatrix:
        return self

    def times(self, factor: float | Tensor) -> KnownMatrix:
        return self

    def damped(self, damping: float) -> KnownMatrix:
        return self

    def lerp(self, target: KnownMatrix, rate: float | Tensor) -> KnownMatrix:
        return self

    def retract(
        self, target: KnownMatrix, rate: float | Tensor, precision: KnownMatrix
    ) -> KnownMatrix:
        return self

    def price(self, offset: Params, gradient: Params) -> KnownMatrix:
        return self

    def only(self, names: tuple[str, ...]) -> KnownMatrix:
        return self


@dataclass(frozen=True)
class Known(Structure):
    """The structure of parameters that have no variance."""

    moves = False
    independent = True
    says_if_negative = True

    def identity(self, params: Params, scale: float) -> KnownMatrix:
        return KnownMatrix()

    def contract(self, rows: Rows) -> KnownMatrix:
        return KnownMatrix()

    def project(self, matrix: Tensor, params: Params) -> KnownMatrix:
        return KnownMatrix()
