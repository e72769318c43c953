"""Isotropic and diagonal matrices against explicit ones."""

import pytest
import torch
from contracts.structure import StructureContract
from exact import DTYPE, close, randn
from torch import Tensor

from bayesrule.matrices import Diagonal, Isotropic
from bayesrule.matrices.diagonal import DiagonalMatrix, SquareMatrix


class TestIsotropic(StructureContract):
    structure = Isotropic()
    separate = (("w",), ("b", "s"), ("s", "w"))

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().mean() * torch.eye(len(matrix), dtype=DTYPE)


class TestDiagonal(StructureContract):
    structure = Diagonal()
    separate = (("w",), ("b", "s"), ("s", "w"))

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().diag()


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1, dtype=DTYPE)])
@pytest.mark.parametrize("factor", [2.5, torch.tensor(2.5, dtype=DTYPE)])
def test_a_square_is_mixed_in_as_any_diagonal(rate: float | Tensor, factor: float | Tensor) -> None:
    vector, old = {"w": randn(3, 4)}, randn(3, 4, seed=1).square()
    expected = old + 0.1 * (2.5 * vector["w"] ** 2 - old)
    found = DiagonalMatrix({"w": old.clone()}).lerp_(SquareMatrix(vector, factor), rate)
    close(found.values["w"], expected)
    plain = DiagonalMatrix({"w": old}).lerp(SquareMatrix(vector, factor), 0.1)
    close(plain.values["w"], expected)


def test_a_square_does_not_outlive_its_vector() -> None:
    vector = {"w": randn(3)}
    square = SquareMatrix(vector, 1.0)
    vector["w"].add_(1.0)
    with pytest.raises(RuntimeError, match="has changed"):
        square.diagonal()
    with pytest.raises(RuntimeError, match="has changed"):
        DiagonalMatrix({"w": randn(3)}).lerp_(square, 0.1)
