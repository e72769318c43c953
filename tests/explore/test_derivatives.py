"""Moments of derivatives against draws of weights, and finite differences of a known network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.explore import derivative_moments


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def _learner(model: nn.Module, gain: float = 1.0) -> br.Learner:
    return br.tagi(model, br.GaussianLikelihood(noise=0.1), num_data=10, gain=gain)


def _drawn(learner: br.Learner, state: Any, x: Tensor, num: int) -> Tensor:
    """Derivatives (num, n, C, d) at draws of the weights."""
    generator = torch.Generator().manual_seed(5)
    draws = [state.posterior.sample(generator) for _ in range(num)]
    stacked = {name: torch.stack([one[name] for one in draws]) for name in draws[0]}

    def output(params: Any, one: Tensor) -> Tensor:
        return torch.func.functional_call(learner.model, params, (one[None],))[0]

    each = torch.func.vmap(torch.func.jacrev(output, 1), (None, 0))
    return torch.func.vmap(each, (0, None))(stacked, x)


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.GELU(), nn.LeakyReLU()]
)
def test_one_hidden_layer_is_exact(activation: nn.Module) -> None:
    learner = _learner(nn.Sequential(nn.Linear(2, 6), activation, nn.Linear(6, 2)))
    state, x = learner.init(), torch.randn(3, 2)
    found = derivative_moments(learner, state, x)
    drawn = _drawn(learner, state, x, 20_000)
    error = drawn.std(0) / 20_000**0.5
    assert ((found.mean - drawn.mean(0)).abs() < 5 * error).all()
    around = (drawn - drawn.mean(0)).square()
    error = around.std(0) / 20_000**0.5
    assert ((found.variance - around.mean(0)).abs() < 5 * error).all()


def test_the_mean_is_the_slope_of_the_mean() -> None:
    learner = _learner(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)))
    state, x, h = learner.init(), torch.randn(4, 2), 1e-5
    found = derivative_moments(learner, state, x)
    for j in range(2):
        step = h * torch.eye(2)[j]
        above, below = (br.predict(learner, state, x + s).mean for s in (step, -step))
        slope = (above - below) / (2 * h)
        torch.testing.assert_close(found.mean[..., j], slope, rtol=1e-5, atol=1e-7)


def test_the_outputs_are_those_of_predictions() -> None:
    learner = _learner(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)))
    state, x = learner.init(), torch.randn(4, 2)
    found, p = derivative_moments(learner, state, x), br.predict(learner, state, x)
    torch.testing.assert_close(found.output_mean, p.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.output_variance, p.epistemic, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_known_weights_have_the_derivative_of_the_network(activation: nn.Module) -> None:
    parts = nn.Linear(2, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 2)
    model = nn.Sequential(*parts)
    learner = _learner(model, gain=1e-6)
    state, x, h = learner.init(), torch.randn(4, 2), 1e-6
    found = derivative_moments(learner, state, x)
    weights = state.posterior.mean
    for j in range(2):
        step = h * torch.eye(2)[j]
        above, below = (torch.func.functional_call(model, weights, (x + s,)) for s in (step, -step))
        torch.testing.assert_close(
            found.mean[..., j], (above - below) / (2 * h), rtol=1e-6, atol=1e-6
        )
    assert float(found.variance.max()) < 1e-9


def test_deeper_nets_are_near() -> None:
    parts = nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1)
    learner = _learner(nn.Sequential(*parts), gain=0.3)
    state, x = learner.init(), torch.randn(3, 2)
    found, drawn = derivative_moments(learner, state, x), _drawn(learner, state, x, 4000)
    assert ((found.mean - drawn.mean(0)).abs() < 0.2 * drawn.std(0)).all()
    ratio = found.variance / drawn.var(0)
    assert ((ratio > 0.5) & (ratio < 1.5)).all(), ratio


def test_other_layers_are_refused_by_name() -> None:
    learner = _learner(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    with pytest.raises(TypeError, match=r"'1.' is a LayerNorm"):
        derivative_moments(learner, learner.init(), torch.zeros(1, 2))
