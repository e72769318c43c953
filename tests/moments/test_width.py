"""Deviations that are carried at a share of their size: exact where nets are linear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.moments import MomentMatched, Propagation, uncertain
from bayesrule.predicting.predict import believed_outputs
from bayesrule.tensors.network import copies

WIDTHS = [0.01, 0.1, 0.7]


def learner(model: nn.Module, width: float, **options: Any) -> Learner:
    """TAGI with known noise."""
    likelihood = br.GaussianLikelihood(noise=0.3)
    return br.tagi(
        model, likelihood, num_data=10, activations=MomentMatched(width=width), **options
    )


def normed() -> nn.Module:
    """Six layers, five of them before batch norm."""
    layers: list[nn.Module] = []
    for inputs in (6, 32, 32, 32, 32):
        layers += [nn.Linear(inputs, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 3))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_step_of_a_linear_net_is_the_same(width: float) -> None:
    model, batch = nn.Linear(4, 2), (torch.randn(5, 4), torch.randn(5, 2))
    usual, narrow = learner(model, 1.0), learner(model, width)
    for state in (usual.init(), usual.step(usual.init(), batch)[0]):
        expected, found = usual.step(state, batch)[0], narrow.step(state, batch)[0]
        torch.testing.assert_close(found.posterior.mean, expected.posterior.mean)
        torch.testing.assert_close(found.posterior.variance(), expected.posterior.variance())
        predicted = [br.predict(one, state, batch[0]) for one in (usual, narrow)]
        torch.testing.assert_close(predicted[1].epistemic, predicted[0].epistemic)


def test_a_narrow_pass_is_that_of_the_tangent_at_the_means() -> None:
    """With one hidden layer no two paths share a weight, so `Σ v (∂f/∂w)²` is what TAGI sees."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    narrow, x = learner(model, 1e-4), torch.randn(5, 3)
    state = narrow.init()
    found = believed_outputs(narrow, state, x)

    def outputs(params: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, params, (x,))

    slopes, variance = torch.func.jacrev(outputs)(state.posterior.mean), state.posterior.variance()
    expected = sum((slopes[k].square() * v).flatten(2).sum(-1) for k, v in variance.items())
    torch.testing.assert_close(found.values, model(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_inputs_and_hidden_units_of_a_linear_net_are_inferred_alike(width: float) -> None:
    # With known weights all that is uncertain is the input, whose path is linear.
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    x, y = uncertain(torch.randn(5, 3), 0.5), torch.randn(5, 2)
    usual, narrow = (learner(model, one, gain=1e-6) for one in (1.0, width))
    inputs = [br.explore.infer_inputs(one, one.init(), x, y) for one in (usual, narrow)]
    hidden = [br.explore.infer_hidden(one, one.init(), x, y)["0"] for one in (usual, narrow)]
    for expected, found in (inputs, hidden):
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.variance, expected.variance, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.prior_variance, expected.prior_variance)


def hidden_share(width: float) -> float:
    """Which share of what the outputs may learn is in the first three layers."""
    model = normed()
    given, x = learner(model, width), torch.randn(40, 6)
    posterior, buffers = given.init().posterior, copies(given.init().buffers)
    variance = posterior.variance()
    propagation = Propagation(given.network, MomentMatched(width=width))
    outputs = propagation.forward(posterior.mean, variance, buffers, x, training=True)
    _, eta = propagation.back(outputs, torch.zeros(40, 3), torch.ones(40, 3))
    learned = {name: float((variance[name] * eta[name]).sum()) for name in eta}
    return sum(learned[f"{i}.weight"] for i in (0, 3, 6)) / sum(learned.values())


def test_behind_batch_norm_wide_weights_hide_the_first_layers() -> None:
    assert hidden_share(1.0) < 0.02
    assert hidden_share(0.1) > 0.2


def test_logits_of_a_net_with_batch_norm_are_learned_at_the_defaults() -> None:
    x = torch.randn(300, 6)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    model, data = normed(), (x, y)
    losses = []
    for activations in (None, MomentMatched()):
        given = br.tagi(model, br.CategoricalLikelihood(), num_data=300, activations=activations)
        run = br.fit(given, data, epochs=8, batch_size=10, progress=False)
        losses.append(run.history[-1]["loss"])
    assert losses[0] < losses[1] - 0.1


def test_logits_are_carried_narrowly_where_nobody_says() -> None:
    model = nn.Linear(3, 2)
    widths = {
        br.CategoricalLikelihood(): 0.1,
        br.BernoulliLikelihood(): 0.1,
        br.GaussianLikelihood(): 1.0,
        br.likelihoods.OneHotLikelihood(): 1.0,
    }
    for likelihood, width in widths.items():
        given = br.tagi(model, likelihood, num_data=10)
        assert given.expectation.activations.width == width
        assert given.predictive == given.expectation


def test_moments_of_predictions_have_the_width_that_was_learned_with() -> None:
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2))
    given = br.tagi(model, br.CategoricalLikelihood(), num_data=10)
    state, x = given.init(), torch.ones(4, 3)
    own, asked, whole = (
        br.predict(given, state, x, how).probs
        for how in (None, br.Moments(), br.Moments(MomentMatched()))
    )
    assert torch.equal(own, asked)
    assert not torch.allclose(own, whole)


@pytest.mark.parametrize("width", [0.0, -0.1, 1.5])
def test_a_width_is_a_share(width: float) -> None:
    with pytest.raises(ValueError, match=r"width must be above 0"):
        MomentMatched(width=width)
