"""Structures over some of the parameters: the others have no variance."""

from typing import cast

import pytest
import torch
from contracts.structure import PARAMS, StructureContract
from exact import DTYPE, TableRows, close
from torch import Tensor

from bayesrule.matrices import (
    Dense,
    Diagonal,
    Isotropic,
    LowRank,
    LowRankMatrix,
    Matrix,
    Subset,
    SubsetMatrix,
)


class SubsetContract(StructureContract):
    names = ("b", "s")


class TestSubsetOfIsotropic(SubsetContract):
    structure = Subset(Isotropic(), SubsetContract.names)

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().mean() * torch.eye(len(matrix), dtype=DTYPE)


class TestSubsetOfDiagonal(SubsetContract):
    structure = Subset(Diagonal(), SubsetContract.names)

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().diag()


class TestSubsetOfDense(SubsetContract):
    structure = Subset(Dense(), SubsetContract.names)

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix


class TestSubsetInAnotherOrder(SubsetContract):
    """The order in which the names are given is the order of the inner matrix, everywhere."""

    names = ("s", "w")
    structure = Subset(Dense(), ("s", "w"))

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix

    def test_projections_and_contractions_add_up(self) -> None:
        rows = self.rows()
        jacobian = rows.jacobian(tuple(PARAMS)).flatten(end_dim=1)
        projected = self.structure.project(jacobian.mT @ jacobian, PARAMS)
        both = projected.plus(self.structure.contract(rows))
        close(self.dense(both), 2.0 * self.dense(projected))


class TestSubsetOfLowRank(SubsetContract):
    """Four directions for four weights: exact."""

    structure = Subset(LowRank(4), SubsetContract.names)
    has_price = False

    def keep(self, matrix: Tensor) -> Tensor:
        values, directions = torch.linalg.eigh(matrix)
        positive = directions @ values.clamp_min(0.0).diag() @ directions.mT
        return positive + (matrix - positive).diagonal().diag()

    def retracted(self, old: Matrix, target: Matrix, rate: float, damping: float) -> Tensor:
        f, t = (cast(LowRankMatrix, cast(SubsetMatrix, m).inner) for m in (old, target))
        step = t.d - f.d
        bent = f.d + rate * step + 0.5 * rate**2 * step.square() / (f.d + damping)
        return bent.diag() + (1 - rate) * f.u @ f.u.mT + rate * t.u @ t.u.mT


def test_unknown_or_no_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\['v'\]; the parameters are w, b, s"):
        Subset(Diagonal(), ("b", "v")).identity(PARAMS, 1.0)
    with pytest.raises(ValueError, match="names nothing"):
        Subset(Diagonal(), ()).identity(PARAMS, 1.0)


def test_rows_outside_do_not_matter() -> None:
    rows = TableRows.random(PARAMS, 1, 4)
    louder = TableRows({**rows.table, "w": 100.0 * rows.table["w"]})
    structure = Subset(Dense(), ("b", "s"))
    like = {name: PARAMS[name] for name in ("b", "s")}
    one, two = structure.contract(rows).damped(1.0), structure.contract(louder).damped(1.0)
    close(one.logdet(), two.logdet(), 0.0)
    close(one.output_covariance(rows), two.output_covariance(louder), 0.0)
    assert set(one.diagonal()) == set(like)
