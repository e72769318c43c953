"""Full matrices against explicit ones."""

import pytest
import torch
from contracts.structure import PARAMS, StructureContract
from exact import DTYPE, TableRows, symmetric
from torch import Tensor

from bayesrule.matrices import Dense, LowRank


class TestDense(StructureContract):
    structure = Dense()

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix


def test_a_matrix_that_is_not_positive_is_refused() -> None:
    matrix = Dense().project(symmetric(8), PARAMS)
    for use in (matrix.logdet, matrix.inverse_diagonal, lambda: matrix.solve(PARAMS)):
        with pytest.raises(ValueError, match=r"not positive definite.*prior_precision.*GGN"):
            use()


def test_too_many_parameters_are_refused_with_a_way_out() -> None:
    params = {"w": torch.zeros(30)}
    with pytest.raises(ValueError, match=r"30 parameters.*limit is 29.*Dense\(limit=30\)"):
        Dense(limit=29).identity(params, 1.0)
    assert Dense(limit=30).identity(params, 1.0).values.shape == (30, 30)


def test_trace_with_a_low_rank_matrix_is_refused_rather_than_wrong() -> None:
    precision = Dense().identity(PARAMS, 1.0)
    other = LowRank(2).contract(TableRows.random(PARAMS, 1, 4)).damped(1.0)
    with pytest.raises(TypeError, match="LowRankMatrix"):
        precision.trace_solve(other)
    assert other.trace_solve(precision).dtype == DTYPE
