"""Whole curvature matrices and Kronecker factors as curvlinops has them.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

import warnings
from typing import Any

import pytest
import torch
from exact import dense
from torch import Tensor

from bayesrule.curvature import GGN, Curvature, Hessian, PerExample, Problem
from bayesrule.matrices import Dense, Kronecker, Structure
from peers.cases import LAYERED, NETS, TASKS, Task, agree, curvature, problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    curvlinops = pytest.importorskip("curvlinops")

# Its forward derivatives make torch compile functions in a way that torch itself gives up.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
WHOLE = {
    "GGNLinearOperator": GGN(),
    "HessianLinearOperator": Hessian(),
    "EFLinearOperator": PerExample(),
}
FISHERS = {"type-2": GGN(), "empirical": PerExample()}
KRONECKERS = {"KFACLinearOperator": Kronecker(), "EKFACLinearOperator": Kronecker(corrected=True)}


def _theirs(operator: str, given: Problem, task: Task, **options: Any) -> Tensor:
    """One of their operators as a matrix (P, P)."""
    model = given.network.model
    parts = model, task.loss(), list(model.parameters()), [(given.x, given.y)]
    found = getattr(curvlinops, operator)(*parts, check_deterministic=False, **options)
    matrix: Tensor = found @ torch.eye(found.shape[0])
    return matrix


def _ours(given: Problem, kind: Curvature, structure: Structure) -> Tensor:
    return dense(curvature(given, kind, structure), given.network.params())


@pytest.mark.parametrize("operator", WHOLE)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("net", NETS)
def test_whole_matrices_agree(net: str, task: Task, operator: str) -> None:
    given = problem(NETS[net], task)
    agree(_ours(given, WHOLE[operator], Dense()), _theirs(operator, given, task))


@pytest.mark.parametrize("operator", KRONECKERS)
@pytest.mark.parametrize("fisher", FISHERS)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("net", LAYERED)
def test_kronecker_factors_agree(net: str, task: Task, fisher: str, operator: str) -> None:
    """Inputs and gradients of a shared layer count one by one: what they call "expand"."""
    given = problem(LAYERED[net], task)
    options = {"kfac_approx": "expand", "separate_weight_and_bias": False}
    want = _theirs(operator, given, task, fisher_type=fisher, **options)
    agree(_ours(given, FISHERS[fisher], KRONECKERS[operator]), want)
    # It is an approximation, so that this is not the test of whole matrices once more.
    assert (_ours(given, FISHERS[fisher], Dense()) - want).norm() > 1e-3 * want.norm()
