"""Draws of functions: fixed while they are used, and of the belief's moments."""

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.explore import draw_function, draw_marginals

METHODS: list[Callable[..., br.Learner]] = [
    br.tagi, br.vogn, br.noisy_kfac, br.noisy_full, br.mean_field, br.k_tied, br.laplace,
    br.bayesbinn,
]  # fmt: skip


def _trained(method: Callable[..., br.Learner]) -> tuple[br.Learner, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    learner = method(model, br.GaussianLikelihood(noise=0.3), num_data=20)
    batch = torch.randn(20, 3), torch.randn(20, 2)
    state, _ = learner.step(learner.init(), batch)
    return learner, learner.finish(state, [batch])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_a_function_is_the_network_at_drawn_weights(method: Callable[..., br.Learner]) -> None:
    learner, state = _trained(method)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    act, x = draw_function(learner, state, seed=4), torch.randn(5, 3)
    first = act(x).clone()
    torch.testing.assert_close(act(x), first, rtol=0, atol=0)
    torch.testing.assert_close(draw_function(learner, state, seed=4)(x), first, rtol=0, atol=0)
    torch.testing.assert_close(act(x[2:3]), first[2:3])
    act.redraw(state, seed=5)
    assert not torch.equal(act(x), first)
    for name, value in learner.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("method", [br.tagi, br.vogn, br.noisy_kfac])
def test_functions_have_the_moments_of_the_belief(method: Callable[..., br.Learner]) -> None:
    torch.manual_seed(0)
    learner = method(nn.Linear(3, 2), br.GaussianLikelihood(noise=0.3), num_data=20)
    state, _ = learner.step(learner.init(), (torch.randn(20, 3), torch.randn(20, 2)))
    x, act = torch.randn(4, 3), draw_function(learner, state)
    exact = br.predict(learner, state, x, br.Linearised())
    drawn = []
    for seed in range(3000):
        act.redraw(state, seed=seed)
        drawn.append(act(x))
    outputs = torch.stack(drawn)
    assert ((outputs.mean(0) - exact.mean).abs() < 5 * (exact.epistemic / 3000).sqrt()).all()
    assert ((outputs.var(0) / exact.epistemic - 1).abs() < 0.2).all()


@pytest.mark.parametrize("how", [br.Linearised(), br.Moments(), br.Draws(64)])
def test_marginals_have_the_moments_of_the_prediction(how: Any) -> None:
    learner, state = _trained(br.tagi)
    x = torch.randn(1, 3).expand(4000, 3)
    drawn, p = draw_marginals(learner, state, x, how), br.predict(learner, state, x[:1], how)
    assert ((drawn.mean(0) - p.mean[0]).abs() < 5 * (p.epistemic[0] / 4000).sqrt()).all()
    assert ((drawn.var(0) / p.epistemic[0] - 1).abs() < 0.2).all()


def test_frozen_weights_and_buffers_are_those_of_the_state() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    learner = br.vogn(model, br.GaussianLikelihood(noise=0.3), num_data=20)
    state, _ = learner.step(learner.init(), (torch.randn(20, 3), torch.randn(20, 1)))
    act = draw_function(learner, state)
    torch.testing.assert_close(act._tensors["0.weight"], state.buffers["0.weight"])
    torch.testing.assert_close(act._tensors["1.running_mean"], state.buffers["1.running_mean"])


def test_a_mean_alone_is_refused() -> None:
    learner, state = _trained(br.map)
    with pytest.raises(ValueError, match="mean of its weights"):
        draw_marginals(learner, state, torch.zeros(1, 3))
    with pytest.raises(ValueError, match="one function"):
        draw_function(learner, state)


def test_a_function_of_dropout_is_the_mean_with_units_dropped() -> None:
    learner, state = _trained(br.dropout)
    x, mean = torch.randn(4, 3), state.posterior.slab  # type: ignore[attr-defined]
    act = draw_function(learner, state)
    hidden = torch.tanh(x @ mean["0.weight"].T + mean["0.bias"])
    for seed in range(20):
        act.redraw(state, seed=seed)
        kept = (act._tensors["2.weight"] != 0).to(x)
        expected = hidden @ (kept * mean["2.weight"]).T + mean["2.bias"]
        torch.testing.assert_close(act(x), expected)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_acting_on_one_input_costs_little_more_than_the_bare_module(
    method: Callable[..., br.Learner],
) -> None:
    """12 µs of a quiet core, where a prediction takes 200 and may take 60 at most."""
    learner, state = _trained(method)
    act, module, x = draw_function(learner, state), learner.model.eval(), torch.randn(1, 3)
    with torch.inference_mode():
        drawn, bare = (
            min(timeit.repeat(partial(f, x), number=20, repeat=25)) for f in (act, module)
        )
    assert drawn < 4 * bare
