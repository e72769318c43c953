"""Data that are conditioned on again: what they teach, and what they do not take away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.rules import Conditioning
from bayesrule.tensors import tree
from bayesrule.types import State
from tests.execution.stacked import beside

pytestmark = pytest.mark.usefixtures("double_precision")
NOISE = 0.5


def tagi(num_data: int = 12, second_look: float = 0.1, **options: Any) -> Learner:
    """TAGI with known noise on a small net."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
    rule, likelihood = Conditioning(second_look=second_look), br.GaussianLikelihood(noise=NOISE)
    return br.tagi(model, likelihood, num_data=num_data, rule=rule, **options)


def data() -> tuple[Tensor, Tensor]:
    """Twelve rows."""
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True).sin()


def after(learner: Learner, passes: int, state: State | None = None) -> State:
    """The state after some passes over the data, four rows at a time."""
    (x, y), state = data(), state or learner.init()
    for rows in torch.arange(12).split(4) if passes else ():
        state, _ = learner.step(state, (x[rows], y[rows]))
    return state if passes < 2 else after(learner, passes - 1, state)


def tensors(state: State) -> Iterable[tuple[str, Tensor]]:
    """All of the belief."""
    return tree.tensors(state.posterior).items()


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_one_pass_is_conditioning_as_it_is(temperature: float) -> None:
    """However much an example counts, the data are seen once after num_data examples."""
    given = {"temperature": temperature}
    looked, plain = tagi(second_look=0.9, **given), tagi(second_look=0.0, **given)
    first = after(looked, 1)
    expected = dict(tensors(after(plain, 1)))
    assert float(first.rule["seen"]) == 12.0
    for name, value in tensors(first):
        assert torch.equal(value, expected[name]), name
    variance, others = after(looked, 2).posterior.variance(), after(plain, 2).posterior.variance()
    assert all((variance[name] > others[name]).any() for name in variance)


def test_what_is_known_well_enough_loses_no_variance() -> None:
    """With a small gain, outputs are much surer than the noise from the start."""
    learner, plain = tagi(gain=0.05), tagi(gain=0.05, second_look=0.0)
    once, thrice = after(learner, 1), after(learner, 3)
    for name, value in once.posterior.variance().items():
        torch.testing.assert_close(thrice.posterior.variance()[name], value, rtol=1e-12, atol=0.0)
        assert not torch.equal(thrice.posterior.mean[name], once.posterior.mean[name])
    fallen = after(plain, 3).posterior.variance()
    assert all((fallen[k] < v).any() for k, v in once.posterior.variance().items())


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("second_look", [0.0, 0.1, 0.5, 0.9])
def test_a_second_look_takes_what_the_share_leaves(second_look: float, temperature: float) -> None:
    """`1 − second_look / share` of what a first look takes, in a linear model of one weight."""
    rule = Conditioning(10.0, 0.99, second_look)
    likelihood = br.GaussianLikelihood(noise=NOISE)
    model = nn.Linear(1, 1, bias=False)
    given: dict[str, Any] = {"num_data": 2, "rule": rule, "temperature": temperature}
    learner = br.tagi(model, likelihood, **given)
    batch = torch.ones(2, 1), torch.ones(2, 1)
    once, _ = learner.step(learner.init(), batch)
    twice, _ = learner.step(once, batch)
    before = float(once.posterior.variance()["weight"])
    share = before / (before + NOISE**2)
    taken = 2 * share / temperature * max(0.0, 1.0 - second_look / share)
    found = 1.0 - float(twice.posterior.variance()["weight"]) / before
    assert found == pytest.approx(taken, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("num_data", "least"), [(20, 0.1), (4900, 0.01)])
def test_a_second_look_leaves_less_by_the_end_of_training(num_data: int, least: float) -> None:
    """From 0.1 to 0.7 / √N where that is less, in a linear model of one weight."""
    rule = Conditioning(10.0, 0.99, 0.1).falling(0, 4)
    model = nn.Linear(1, 1, bias=False)
    learner = br.tagi(model, br.GaussianLikelihood(noise=NOISE), num_data=num_data, rule=rule)
    state, batch = learner.init(), (torch.ones(2, 1), torch.ones(2, 1))
    state.rule["seen"].fill_(num_data)
    rate = [1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0, 0.0]
    for look in [least + (0.1 - least) * part for part in rate]:
        before = float(state.posterior.variance()["weight"])
        share = before / (before + NOISE**2)
        state, _ = learner.step(state, batch)
        taken = min(2 * share, 0.99) * max(0.0, 1.0 - look / share)
        found = 1.0 - float(state.posterior.variance()["weight"]) / before
        assert found == pytest.approx(taken, rel=1e-9, abs=1e-12)


def test_a_stack_looks_again_as_each_of_its_nets() -> None:
    state = beside.follow(lambda n: tagi(n), num_data=(12, 12, 12), steps=5)
    assert state.rule["seen"].flatten().tolist() == [30.0, 30.0, 30.0]


def test_it_falls_in_a_stack_too() -> None:
    def build(num_data: int) -> Learner:
        learner = tagi(num_data)
        return learner.with_rule(learner.rule.falling(6, 4))

    beside.follow(build, num_data=(20, 20, 20), steps=10)
    beside.follow(build, num_data=(700, 700, 700), steps=10)
