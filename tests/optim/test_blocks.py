"""Draws, and gradients over several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import bayesrule as br
from bayesrule.optim import BayesianOptimizer
from optim.loops import (
    BATCHES,
    CLOSE,
    N,
    X,
    Y,
    assert_same,
    backward,
    ivon,
    network,
    train,
    weights,
)


def test_weights_and_gradients_are_restored_after_an_exception() -> None:
    model = network()
    optimizer = ivon(model)
    train(model, optimizer, 1)
    before, grads = weights(model), [p.grad for p in model.parameters()]

    def fail() -> None:
        with optimizer.sampled_params():
            backward(model, BATCHES[0])
            assert not torch.equal(model[0].weight, before["0.weight"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert_same(weights(model), before)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    with pytest.raises(RuntimeError, match="no gradient at a draw"):
        optimizer.step()


def test_calls_that_need_the_mean_are_refused_inside_a_block() -> None:
    model = network()
    optimizer = ivon(model)
    calls: dict[str, Callable[[], Any]] = {
        r"sampled_params\(\)": lambda: optimizer.sampled_params().__enter__(),
        r"step\(\)": optimizer.step,
        "posterior": lambda: optimizer.posterior,
        r"load_state_dict\(\)": lambda: optimizer.load_state_dict(optimizer.state_dict()),
    }
    before = weights(model)
    with optimizer.sampled_params():
        for name, call in calls.items():
            with pytest.raises(RuntimeError, match=name + ".*leave the block first"):
                call()
    assert_same(weights(model), before)


def test_backward_passes_in_one_block_add_up() -> None:
    x, y = BATCHES[0]
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    with optimizers[0].sampled_params():
        backward(models[0], (x, y))
    with optimizers[1].sampled_params():
        for half in (slice(0, 4), slice(4, 8)):
            backward(models[1], (x[half], y[half]), factor=0.5)
    for optimizer in optimizers:
        optimizer.step()
    assert_same(weights(models[0]), weights(models[1]), **CLOSE)
    a, b = (optimizer.posterior.variance() for optimizer in optimizers)
    assert_same(a, b, **CLOSE)


def test_several_blocks_leave_their_mean_gradient() -> None:
    model = network()
    optimizer = ivon(model)
    found = []
    for batch in BATCHES[:3]:
        with optimizer.sampled_params():
            backward(model, batch)
            found.append(model[0].weight.grad.clone())
    torch.testing.assert_close(model[0].weight.grad, torch.stack(found).mean(0), **CLOSE)


@pytest.mark.parametrize(
    "forget",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: model.zero_grad(),
    ],
)
def test_zero_grad_outside_a_block_forgets_the_blocks_before(forget: Callable[..., None]) -> None:
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    with optimizers[0].sampled_params():
        backward(models[0], BATCHES[3], factor=100.0)
    forget(models[0], optimizers[0])
    with optimizers[1].sampled_params():
        pass  # both have now drawn once
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 2)
    assert_same(weights(models[0]), weights(models[1]))


def test_stale_gradients_do_no_harm() -> None:
    models = network(), network()
    for model, clear in zip(models, (True, False), strict=True):
        optimizer = ivon(model)
        for batch in BATCHES:
            with optimizer.sampled_params():
                if clear:
                    optimizer.zero_grad()
                backward(model, batch)
            optimizer.step()
    assert_same(weights(models[0]), weights(models[1]))


def test_a_backward_pass_after_the_block_is_an_error() -> None:
    model = network()
    optimizer = ivon(model)
    with optimizer.sampled_params():
        loss = F.cross_entropy(model(X), Y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_draws_for_predictions_leave_training_alone() -> None:
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    seen = []
    for i in range(3):
        train(models[0], optimizers[0], 1)
        train(models[1], optimizers[1], 1)
        for _ in range(i + 2):
            with optimizers[1].sampled_params(train=False), torch.no_grad():
                seen.append(models[1](X[:1])[0, 0].item())
    assert len(set(seen)) == len(seen)
    assert_same(weights(models[0]), weights(models[1]))


def test_antithetic_draws_come_in_pairs() -> None:
    model = network()
    optimizer = BayesianOptimizer(
        model.parameters(),
        num_data=N,
        posterior=br.GaussianFamily(br.Diagonal()),
        expectation=br.Draws(2, antithetic=True),
        curvature=br.Price(),
        rule=br.Natural(0.1, 0.1, retract=True),
    )
    mean, seen = model[0].weight.detach().clone(), []
    for _ in range(4):
        with optimizer.sampled_params():
            seen.append(model[0].weight.detach().clone() - mean)
    torch.testing.assert_close(seen[0], -seen[1], **CLOSE)
    torch.testing.assert_close(seen[2], -seen[3], **CLOSE)
    assert not torch.allclose(seen[0].abs(), seen[2].abs())


def test_the_global_random_state_is_not_touched() -> None:
    model = network()
    optimizer = ivon(model)
    before = torch.get_rng_state()
    train(model, optimizer, 2)
    with optimizer.sampled_params(train=False):
        pass
    assert torch.equal(before, torch.get_rng_state())


def test_the_seed_decides_the_draws() -> None:
    models = [network() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        train(model, ivon(model, seed=seed), 1)
    assert_same(weights(models[0]), weights(models[1]))
    assert not torch.equal(models[0][0].weight, models[2][0].weight)
