"""What every inference of inputs stands on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.explore.inference import (
    FixedNetwork,
    clamp,
    input_posterior_moments,
    posterior_moments,
)
from bayesrule.moments import GaussianTensor, Propagation


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Float64 in every test."""


def gone_back(noise: float, times: int) -> tuple[Propagation, GaussianTensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    learner = br.tagi(model, br.GaussianLikelihood(noise=noise), num_data=1)
    network = FixedNetwork(learner, learner.init())
    propagation, outputs = network.forward(br.moments.uncertain(torch.randn(5, 3), 0.1))
    return propagation, outputs, network.back(outputs, torch.randn(5, 2), times=times)


@pytest.mark.parametrize("times", [2, 3, 7, 1000])
def test_many_observations_are_one_of_less_noise(times: int) -> None:
    many, outputs, first = gone_back(0.5, times)
    one, single, _ = gone_back(0.5 / math.sqrt(times), 1)
    torch.testing.assert_close(outputs.node.delta, single.node.delta)
    torch.testing.assert_close(outputs.node.eta, single.node.eta)
    for found, expected in zip(
        posterior_moments(many.inputs[0]), posterior_moments(one.inputs[0]), strict=True
    ):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(first, gone_back(0.5, 1)[2])


def test_classes_seen_more_often_are_surer() -> None:
    torch.manual_seed(0)
    learner = br.tagi(nn.Linear(3, 3), br.CategoricalLikelihood(), num_data=1)
    network, x, y = FixedNetwork(learner, learner.init()), torch.randn(5, 3), torch.arange(5) % 3
    before = -math.inf
    for times in (1, 10, 1000):
        _, outputs = network.forward(br.moments.uncertain(x, 1.0))
        network.back(outputs, y, times=times)
        mean, variance = posterior_moments(outputs, reach=1e9)
        sure = learner.likelihood.condition(mean, variance, y, {}).log_prob
        assert float(sure.min()) > before
        before = float(sure.min())
        assert bool((variance > 0).all())


def test_weights_are_not_on_the_tape() -> None:
    propagation, _, _ = gone_back(0.5, 1)
    assert propagation.weights == {}
    assert propagation.inputs[0].node.delta is not None


def test_a_step_is_shortened_and_keeps_its_direction() -> None:
    way, outputs, _ = gone_back(1e-4, 1000)
    x = way.inputs[0]
    near, far = (posterior_moments(x, reach=reach)[0] - x.centre for reach in (0.01, 1e9))
    assert float((near.abs() / x.variance.sqrt()).max()) == pytest.approx(0.01)
    torch.testing.assert_close(
        near / near.norm(dim=1, keepdim=True), far / far.norm(dim=1, keepdim=True)
    )
    held = input_posterior_moments(x, outputs)[0] - x.centre
    power = (x.node.delta * held).sum(1)
    asked = (outputs.variance * outputs.node.delta.square()).sum(1)
    assert bool((power <= asked * (1 + 1e-9)).all())


def test_bounds_are_checked() -> None:
    x = torch.tensor([-2.0, 0.0, 2.0])
    assert clamp(x, None) is x
    assert clamp(x, (-1.0, 1.0)).tolist() == [-1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="least, largest"):
        clamp(x, (1.0, 1.0))
