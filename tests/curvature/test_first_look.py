"""The first look at the size of the curvature, against the Fisher information itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import bayesrule as br
from bayesrule import Learner
from bayesrule.curvature.first_look import first_look
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.tensors import tree
from bayesrule.types import State

pytestmark = pytest.mark.usefixtures("double_precision")
NOISE = 0.5


def net() -> nn.Sequential:
    """A small net, the same each time, in which the first weights matter most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Softplus(), nn.Linear(3, 1))
    with torch.no_grad():
        model[2].weight *= 30.0
    return model


def data() -> tuple[Tensor, Tensor]:
    """Ten rows."""
    x = 10.0 * torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)


def vogn(noise: float = NOISE, **options: Any) -> Learner:
    """A learner that looks first, unless it is given a curvature."""
    return br.vogn(net(), br.GaussianLikelihood(noise=noise), **{"num_data": 40, **options})


def exact(x: Tensor) -> dict[str, float]:
    """The mean over the weights of a layer of the Fisher information of one datum, on average."""
    model = net()
    params = {name: value.detach() for name, value in model.named_parameters()}
    rows = jacrev(lambda p: functional_call(model, p, x).squeeze(1))(params)
    return {k: float(v.square().mean()) / NOISE**2 for k, v in rows.items()}


def looks(learner: Learner, state: State, batch: tuple[Tensor, Tensor]) -> float:
    """The size that the first look finds."""
    [found] = first_look(learner.problem(state, batch), state.posterior)
    assert found is not None
    return found


def test_it_is_the_largest_layer_of_the_fisher_information() -> None:
    """Where one layer is the largest by far: the largest of several estimates is too large."""
    learner, batch = vogn(), data()
    *others, largest = sorted(exact(batch[0]).values())
    assert max(others) < 0.05 * largest
    found = torch.tensor([looks(learner, learner.init(seed), batch) for seed in range(3000)])
    error = float(found.std()) / len(found) ** 0.5
    assert error < 0.04 * largest
    assert abs(float(found.mean()) - largest) < 4.0 * error


def test_the_temperature_is_no_part_of_it() -> None:
    sizes = set()
    for temperature in (1.0, 0.1):
        learner = vogn(temperature=temperature, prior_precision=0.0)
        sizes.add(looks(learner, learner.init(), data()))
        begun = learner.begun(learner.init(), data()).posterior
        for value in begun.variance().values():
            expected = torch.full_like(value, temperature / (40 * max(sizes)))
            torch.testing.assert_close(value, expected)
    assert len(sizes) == 1


@pytest.mark.parametrize("c", [0.1, 5.0])
def test_a_scaled_loss_at_a_scaled_temperature_begins_the_same(c: float) -> None:
    """Noise of variance 1/c scales the loss by c."""
    plain, scaled = vogn(temperature=0.5), vogn(NOISE / c**0.5, temperature=0.5 * c)
    first, second = (one.begun(one.init(), data()).posterior for one in (plain, scaled))
    torch.testing.assert_close(second.variance(), first.variance())


def test_a_stack_looks_as_each_of_its_nets() -> None:
    numbers, sizes = (40, 30, 25), (10, 4, 7)
    x = torch.randn(3, 10, 2, generator=torch.Generator().manual_seed(2))
    y = x.sum(2, keepdim=True)
    stack = Stacked(vogn(num_data=40), 3, num_data=numbers)
    state = stack.init([3, 4, 11])
    singles = stack.unstack(state)
    begun = stack.unstack(stack.begun(state, (x, y), sizes))
    for i, (single, found) in enumerate(zip(singles, begun, strict=True)):
        rows = x[i, : sizes[i]], y[i, : sizes[i]]
        expected = vogn(num_data=numbers[i]).begun(single, rows)
        for name, value in tree.tensors(expected).items():
            torch.testing.assert_close(tree.tensors(found)[name], value, rtol=1e-12, atol=0.0)


def test_a_given_curvature_needs_no_look() -> None:
    learner = vogn(initial_curvature=2.0)
    state = learner.init()
    assert learner.begun(state, data()) is state
    later, _ = vogn().step(vogn().init(), data())
    assert vogn().begun(later, data()) is later


def test_inputs_that_say_nothing_leave_the_first_belief() -> None:
    model = nn.Linear(2, 1, bias=False)
    learner = br.vogn(model, br.GaussianLikelihood(noise=NOISE), num_data=40)
    state = learner.init()
    assert learner.begun(state, (torch.zeros(10, 2), torch.ones(10, 1))) is state
