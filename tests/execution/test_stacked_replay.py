"""Steps that are captured once and replayed: the same step, but for its rates and its draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bayesrule.execution.stacked.replay import Graphs, Plain, stepper, uniform
from bayesrule.execution.stacked.steps import Replay
from torch import Tensor, nn

import bayesrule as br
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.rules import Average, Velocity
from bayesrule.tensors.randomness import OneForAll
from bayesrule.training.models import mlp

NUM, SIZE = 3, 8


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM, SIZE, 4, generator=generator, dtype=torch.float64)
    return x, x.sum(2, keepdim=True).sin()


def learner(structure: br.matrices.Structure, rule: br.rules.Rule, **parts: Any) -> br.Learner:
    given = {"expectation": br.AtMean(), "curvature": br.GGN(), **parts}
    return br.Learner(
        mlp(4, 1, (5,)).double(),
        br.GaussianLikelihood(),
        num_data=50,
        posterior=br.GaussianFamily(structure),
        rule=rule,
        **given,
    )


RULES = {
    "average": br.Noisy(br.schedules.cosine(0.05, 10), 0.05, momentum=Average(0.9)),
    "velocity": br.Noisy(0.05, 0.05, momentum=Velocity(0.5), kl_clip=1e-2, damping=1e-3),
    "plain": br.Noisy(0.05, br.schedules.linear(0.5, 0.05, 5)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("structure", [br.Kronecker(), br.Diagonal()])
def test_rates_as_tensors_give_the_same_steps(structure: br.matrices.Structure, rule: str) -> None:
    stack = Stacked(learner(structure, RULES[rule]), NUM, num_data=[50, 60, 70])
    state = other = stack.init()
    numbers = OneForAll(torch.Generator().manual_seed(1), NUM)
    for _ in range(4):
        rates = RULES[rule].rates(other.step)
        given = type(rates)(*(torch.tensor(one, dtype=torch.float64) for one in rates))
        state, info = stack.step(state, data())
        assert stack._steps is not None
        other, loss = stack._steps.step(other, *data(), None, False, Replay(given, numbers))
        torch.testing.assert_close(loss, info.loss)
    for name, mean in state.posterior.mean.items():
        torch.testing.assert_close(other.posterior.mean[name], mean, rtol=1e-9, atol=1e-12)
    wanted = state.posterior.variance()
    for name, value in other.posterior.variance().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-12)


def test_one_generator_for_all_nets_goes_on() -> None:
    numbers = OneForAll(torch.Generator().manual_seed(0), 20)
    first, second = (numbers.several(50, 30, torch.float64) for _ in range(2))
    assert first.shape == (20, 50, 30)
    assert not torch.equal(first, second)
    assert abs(float(first.mean())) < 0.03
    assert abs(float(first.std()) - 1) < 0.03
    assert numbers.rows(7, torch.float32).shape == (20, 7)
    assert numbers.like(first[:, 0]).shape == (20, 30)


def method(name: str, **options: Any) -> Callable[[], br.Learner]:
    def made() -> br.Learner:
        make = getattr(br, name)
        return make(nn.Linear(2, 1), br.GaussianLikelihood(), num_data=10, **options)

    return made


@pytest.mark.parametrize(
    ("make", "can"),
    [
        (method("mean_field"), True),
        (method("map"), True),
        (method("noisy_adam"), True),
        (method("noisy_kfac", stats_every=1, inverse_every=1), True),
        (method("noisy_kfac"), False),  # Not every step is the same.
        (method("noisy_ekfac", stats_every=1, inverse_every=1), False),  # Eigenvectors.
        (method("noisy_full", stats_every=1, inverse_every=1), False),
        (method("vogn"), False),
    ],
)
def test_what_is_replayed(make: Callable[[], br.Learner], can: bool) -> None:
    assert uniform(make()) is can


def test_without_a_gpu_steps_are_taken_as_they_come() -> None:
    stack = Stacked(learner(br.Kronecker(), RULES["plain"]), NUM)
    steps = stepper(stack, stack.init())
    assert isinstance(steps, Plain)
    loss = steps.step(data(), [SIZE] * NUM)
    assert loss.shape == (NUM,)
    assert steps.state.step == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["noisy_kfac", "mean_field"])
def test_graphs_learn_as_steps_do(name: str) -> None:
    every = {"stats_every": 1, "inverse_every": 1} if name == "noisy_kfac" else {}
    found = []
    for kind in (Graphs, Plain):
        net = br.models.mlp(4, 1, (5,)).cuda()
        one = getattr(br, name)(net, br.GaussianLikelihood(), num_data=50, **every)
        stack = Stacked(one, NUM)
        steps = kind(stack, stack.init())
        x, y = (part.float().cuda() for part in data())
        for _ in range(200):
            loss = steps.step((x, y), [SIZE] * NUM)
        assert steps.state.step == 200
        found.append(loss)
    torch.testing.assert_close(*found, rtol=0.2, atol=0.2)
