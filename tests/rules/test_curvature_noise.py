"""The weight of a noisy estimate in the average of the curvature is bounded by its noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Diagonal, Draws, GaussianFamily, Learner, Natural, Price
from tests.execution.stacked import beside

pytestmark = pytest.mark.usefixtures("double_precision")
BATCH = 8


def learner(num_data: int, noise: float, temperature: float = 1.0, rate: float = 0.9) -> Learner:
    """IVON's parts, with a rate that is too large for a batch."""
    torch.manual_seed(0)
    rule = Natural(0.0, rate, retract=True, curvature_noise=noise)
    parts: dict[str, Any] = {
        "posterior": GaussianFamily(Diagonal(), 1.0),
        "expectation": Draws(1),
        "curvature": Price(),
        "rule": rule,
        "temperature": temperature,
    }
    return Learner(nn.Linear(3, 1), br.GaussianLikelihood(noise=1.0), num_data=num_data, **parts)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Rows of a linear function with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(BATCH, 1, generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_rate_is_that_of_the_formula(temperature: float) -> None:
    """`ρ = 2 v B T / N`: the same step as with that rate and no bound."""
    most = 2.0 * 0.1 * BATCH * temperature / 100
    found, expected = (
        one.step(one.init(), batch(0))[0].posterior.variance()
        for one in (
            learner(100, 0.1, temperature),
            learner(100, math.inf, temperature, rate=most),
        )
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_smaller_rate_is_left_as_it_is() -> None:
    found, expected = (
        one.step(one.init(), batch(0))[0].posterior.variance()
        for one in (learner(100, 0.1, rate=1e-3), learner(100, math.inf, rate=1e-3))
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_average_has_about_the_noise_that_is_asked_for() -> None:
    """Over many steps the curvature of a datum varies by about √v; without a bound by far more."""

    def spread(noise: float) -> float:
        one = learner(400, noise)
        state, seen = one.init(), list[Tensor]()
        for step in range(1500):
            state, _ = one.step(state, batch(step), donate=True)
            seen.append(1.0 / state.posterior.variance()["weight"] / 400)
        late = torch.stack(seen[500:])
        return float((late.std(0) / late.mean(0)).mean())

    assert 0.1 < spread(0.1) < 0.6
    assert spread(math.inf) > 1.0


def test_ivon_is_bounded_unless_a_rate_is_given() -> None:
    model, likelihood = nn.Linear(3, 1), br.GaussianLikelihood()
    rule = br.ivon(model, likelihood, num_data=10).rule
    assert isinstance(rule, Natural)
    assert math.isfinite(rule.curvature_noise)
    given = br.ivon(model, likelihood, num_data=10, rate=0.1).rule
    assert isinstance(given, Natural)
    assert given.curvature_noise == math.inf


def test_nets_of_a_stack_have_bounds_of_their_own() -> None:
    beside.follow(lambda num_data: learner(num_data, 0.1), num_data=(20, 22, 35), sizes=(6, 4, 5))
