"""Predictions for uncertain inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.moments.inputs import points

from .nets import randn


@pytest.mark.parametrize("size", [1, 3, 128])
def test_points_have_the_moments_of_standard_normals(size: int) -> None:
    t = points(128, size)
    torch.testing.assert_close(t.mean(0), torch.zeros(size))
    torch.testing.assert_close(t.mT @ t / len(t), torch.eye(size))


def test_points_of_many_inputs() -> None:
    t = points(128, 500)
    torch.testing.assert_close(t.square().mean(1), torch.ones(256))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("width", [5, 50, 500])
def test_variance_does_not_vanish_with_width(activation: type[nn.Module], width: int) -> None:
    torch.manual_seed(width)
    net = nn.Sequential(nn.Linear(3, width), activation(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        net[2].weight.uniform_(0.0, 1.0 / width)
    learner = br.tagi(net, br.GaussianLikelihood(noise=0.1), num_data=10, gain=1e-6)
    x = randn(4, 3, seed=1).double()
    found = br.predict(learner, learner.init(), br.moments.uncertain(x, 0.5))
    with torch.no_grad():
        truth = net(x + 0.5**0.5 * randn(20_000, 4, 3, seed=2))
    assert ((found.mean - truth.mean(0)).abs() < 0.05 * truth.std(0)).all()
    torch.testing.assert_close(found.epistemic, truth.var(0), rtol=0.1, atol=0.0)
