"""Diagonal plus low rank against explicit matrices, truncated and where it is exact."""

from typing import cast

import pytest
import torch
from contracts.structure import PARAMS, StructureContract
from exact import TableRows, close, dense, flat, randn
from torch import Tensor

from bayesrule.matrices import Dense, LowRank, LowRankMatrix, Matrix
from bayesrule.matrices.low_rank import truncate


def leading(matrix: Tensor, rank: int) -> Tensor:
    """The leading positive eigenvectors, and the diagonal of all the rest."""
    values, directions = torch.linalg.eigh(matrix)
    kept = values.clamp_min(0.0)
    kept[: max(0, len(matrix) - rank)] = 0.0
    top = directions @ kept.diag() @ directions.mT
    return top + (matrix - top).diagonal().diag()


class LowRankContract(StructureContract):
    rank: int
    has_price = False

    def keep(self, matrix: Tensor) -> Tensor:
        return leading(matrix, self.rank)

    def _parts(self, matrix: Matrix) -> tuple[Tensor, Tensor]:
        low = cast(LowRankMatrix, matrix)
        return low.d, low.u @ low.u.mT

    def summed(self, a: Matrix, b: Matrix) -> Tensor:
        (d1, u1), (d2, u2) = self._parts(a), self._parts(b)
        return (d1 + d2).diag() + leading(u1 + u2, self.rank)

    def retracted(self, old: Matrix, target: Matrix, rate: float, precision: Matrix) -> Tensor:
        """Only the diagonal part can turn negative, so only it bends."""
        (d1, u1), (d2, u2) = self._parts(old), self._parts(target)
        step = d2 - d1
        straight = d1 + rate * step + 0.5 * rate**2 * step.square() / self._parts(precision)[0]
        return straight.diag() + leading((1 - rate) * u1 + rate * u2, self.rank)


class TestTruncated(LowRankContract):
    rank = 3
    structure = LowRank(3)

    def test_keeps_the_diagonal_of_sums(self) -> None:
        a, b = self.precision(), self.precision(1)
        close(flat(a.plus(b).diagonal()), flat(a.diagonal()) + flat(b.diagonal()))


class TestOneDirection(LowRankContract):
    rank = 1
    structure = LowRank(1)


class TestRankBeyondTheParameters(LowRankContract):
    """With as many directions as parameters nothing is lost: sums are those of full matrices."""

    rank = 8
    structure = LowRank(50)

    def test_equals_the_full_matrix(self) -> None:
        full, low = Dense().contract(self.rows()), self.structure.contract(self.rows())
        other_full, other_low = (
            Dense().contract(self.rows(1)),
            self.structure.contract(self.rows(1)),
        )
        moved = low.lerp(other_low, 0.3)
        close(dense(moved, PARAMS), full.lerp(other_full, 0.3).values)
        close(moved.damped(0.2).logdet(), full.lerp(other_full, 0.3).damped(0.2).logdet())


def test_truncation_is_the_best_of_its_rank() -> None:
    wide = randn(6, 9, seed=3)
    u, d = truncate(wide, 2)
    values = torch.linalg.eigvalsh(wide @ wide.mT)
    lost = wide @ wide.mT - u @ u.mT
    close(torch.linalg.eigvalsh(lost)[-1], values[-3])
    close(d, lost.diagonal())


def test_trace_with_a_full_matrix() -> None:
    low = LowRank(2).contract(TableRows.random(PARAMS, 1, 5)).damped(0.5)
    full = Dense().contract(TableRows.random(PARAMS, 2, 6, seed=30))
    expected = torch.linalg.solve(dense(low, PARAMS), full.values).trace()
    close(low.trace_solve(full), expected)


def test_negative_multiples_and_empty_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scaled by -1\.0"):
        LowRank(2).identity(PARAMS, 1.0).times(-1.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        LowRank(0)
