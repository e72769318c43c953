"""The KL clip: how far a step may move, in nats for each datum."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import AtMean, Diagonal, GaussianFamily, Learner, Natural, PerExample
from bayesrule.rules import Now
from tests.execution.stacked import beside

pytestmark = pytest.mark.usefixtures("double_precision")
CLIP, NUM_DATA = 1e-4, 30


def learner(num_data: int = NUM_DATA, **options: Any) -> Learner:
    """Natural gradients with a clip, seen at the mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    parts: dict[str, Any] = {
        "posterior": GaussianFamily(Diagonal(), 1.0),
        "expectation": AtMean(),
        "curvature": PerExample(),
        "rule": Natural(0.5, 0.1, kl_clip=CLIP),
        **options,
    }
    return Learner(model, br.GaussianLikelihood(noise=1.0), num_data=num_data, **parts)


def batch(scale: float) -> tuple[Tensor, Tensor]:
    """Targets of a size."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 3, generator=generator), scale * torch.ones(10, 1)


def moved(one: Learner, scale: float) -> tuple[float, float]:
    """`(T/N) Δᵀ S Δ` of the first step, S the new precision, and the loss of a datum before it."""
    before = one.init()
    after, info = one.step(before, batch(scale))
    total = 0.0
    for name, value in after.posterior.mean.items():
        step = value - before.posterior.mean[name]
        total += float((step.square() / after.posterior.variance()[name]).sum())
    return total / one.weight, float(info.loss) / one.num_data


@pytest.mark.parametrize("temperature", [1.0, 0.1, 3.0])
@pytest.mark.parametrize(("scale", "low", "high"), [(0.0, 0.0, 1.5), (10.0, 40.0, 80.0)])
def test_it_grows_with_the_loss_of_a_datum(
    scale: float, low: float, high: float, temperature: float
) -> None:
    free, _ = moved(learner(temperature=temperature, rule=Natural(0.5, 0.1)), scale)
    found, loss = moved(learner(temperature=temperature), scale)
    assert low < loss < high
    assert free > found
    assert found == pytest.approx(CLIP * max(1.0, loss), rel=1e-9)


def test_it_grows_to_a_thousand_times() -> None:
    found, loss = moved(learner(temperature=1.0), 1e4)
    assert loss > 1e6
    assert found == pytest.approx(CLIP * 1e3, rel=1e-9)


def test_steps_within_it_are_as_they_are() -> None:
    wide, free = learner(rule=Natural(0.5, 0.1, kl_clip=1e3)), learner(rule=Natural(0.5, 0.1))
    assert moved(wide, 1.0) == pytest.approx(moved(free, 1.0), rel=1e-12)


def test_a_loss_that_is_not_known_does_not_count() -> None:
    """Optimisers of torch's kind are told gradients alone."""
    one = learner(temperature=1.0)
    state, problem = one.init(), one.problem(one.init(), batch(10.0))
    derivatives = one.derivatives(one.local(problem, state.posterior), problem)
    now = Now(state.posterior, derivatives, one.prior, state.rule, one.rule.rates(0), 0)
    unknown = now._replace(derivatives=replace(derivatives, loss=torch.tensor(math.nan)))
    unknown = unknown._replace(posterior=one.init().posterior, memory=one.init().rule)
    after, _ = one.rule.move(unknown)
    assert all(value.isfinite().all() for value in after.mean.values())


def test_each_net_of_a_stack_has_its_own() -> None:
    def data(seed: int) -> tuple[Tensor, Tensor]:
        x, y = beside.real(seed)
        return x, y * torch.tensor([0.1, 10.0, 1e4]).reshape(3, 1, 1)

    beside.follow(learner, data, num_data=(20, 22, 35))
