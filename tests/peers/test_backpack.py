"""Diagonals of curvature matrices and gradients of single examples as BackPACK has them.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from exact import flat
from torch import Tensor, nn

from bayesrule.curvature import GGN, Curvature, Hessian, PerExample, Problem
from bayesrule.matrices import Diagonal
from peers.cases import EXAMPLES, NETS, OUTPUTS, TASKS, Net, Task, agree, curvature, problem

backpack = pytest.importorskip("backpack")
extensions = pytest.importorskip("backpack.extensions")
tuples = pytest.importorskip("backpack.custom_module.reduce_tuple")

# Inputs need no gradient here, which torch remarks where its hooks are used.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def _recurrent(kind: Callable[..., nn.Module]) -> tuple[nn.Module, Tensor]:
    """A recurrent layer with all of its outputs before a linear one."""
    body = kind(3, 4, batch_first=True), tuples.ReduceTuple(0), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(16, OUTPUTS)), torch.randn(EXAMPLES, 4, 3)


RECURRENT: dict[str, Net] = {
    "rnn": lambda: _recurrent(nn.RNN),
    "lstm": lambda: _recurrent(nn.LSTM),
}
EVERY = NETS | RECURRENT
# Its second derivatives know real numbers and classes; those of the whole loss know fewer layers.
SECOND = [name for name in TASKS if name != "yes or no"]
PLAIN = [name for name in NETS if name not in ("batch norm", "embedding")]


def _theirs(extension: str, field: str, given: Problem, task: Task) -> Tensor:
    """What an extension leaves at each parameter of a copy, as one vector."""
    model = backpack.extend(deepcopy(given.network.model))
    loss = backpack.extend(task.loss())(model(given.x), given.y)
    with backpack.backpack(getattr(extensions, extension)()):
        loss.backward()
    return torch.cat([getattr(value, field).flatten() for value in model.parameters()])


def _ours(given: Problem, kind: Curvature) -> Tensor:
    return flat(curvature(given, kind, Diagonal()).diagonal())


@pytest.mark.parametrize("task", SECOND)
@pytest.mark.parametrize("net", EVERY)
def test_diagonals_of_the_ggn_agree(net: str, task: str) -> None:
    given = problem(EVERY[net], TASKS[task])
    want = _theirs("DiagGGNExact", "diag_ggn_exact", given, TASKS[task])
    agree(_ours(given, GGN()), want)


@pytest.mark.parametrize("task", SECOND)
@pytest.mark.parametrize("net", PLAIN)
def test_diagonals_of_the_hessian_agree(net: str, task: str) -> None:
    given = problem(EVERY[net], TASKS[task])
    agree(_ours(given, Hessian()), _theirs("DiagHessian", "diag_h", given, TASKS[task]))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("net", EVERY)
def test_sums_of_squared_gradients_agree(net: str, task: str) -> None:
    given = problem(EVERY[net], TASKS[task])
    want = _theirs("SumGradSquared", "sum_grad_squared", given, TASKS[task])
    agree(_ours(given, PerExample()), want)
