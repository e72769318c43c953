"""Isotropic and diagonal matrices against explicit ones."""

import torch
from contracts.structure import StructureContract
from exact import DTYPE
from torch import Tensor

from bayesrule.matrices import Diagonal, Isotropic


class TestIsotropic(StructureContract):
    structure = Isotropic()

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().mean() * torch.eye(len(matrix), dtype=DTYPE)


class TestDiagonal(StructureContract):
    structure = Diagonal()

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().diag()
