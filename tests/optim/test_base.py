"""Steps, saving and loading."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.optim import SGD, Adam
from optim.loops import (
    BATCHES,
    CLOSE,
    Build,
    N,
    assert_same,
    backward,
    ivon,
    network,
    train,
    weights,
)


def reload(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "build",
    [
        ivon,
        lambda m: Adam(m.parameters(), num_data=N),
        lambda m: SGD(m.parameters(), num_data=N),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(build: Build, dtype: torch.dtype) -> None:
    straight = network(dtype)
    whole = build(straight)
    train(straight, whole, 5)
    saved = reload({"model": straight.state_dict(), "optimizer": whole.state_dict()})
    with whole.sampled_params(train=False):
        pass
    train(straight, whole, 5)
    resumed = network(dtype)
    again = build(resumed)
    train(resumed, again, 2)
    resumed.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, 5)
    assert_same(weights(straight), weights(resumed))
    assert_same(whole.posterior.mean, again.posterior.mean)
    assert_same(whole.posterior.variance(), again.posterior.variance())


def test_the_step_counter_and_the_seed_are_saved() -> None:
    model = network()
    optimizer = ivon(model, seed=5)
    train(model, optimizer, 3)
    saved = reload(optimizer.state_dict())
    assert saved["param_groups"][0]["step"] == 3
    assert saved["param_groups"][0]["seed"] == 5
    assert {entry["step"] for entry in saved["state"].values()} == {3}


def test_a_copied_optimiser_goes_on_alone() -> None:
    model = network()
    optimizer = ivon(model)
    train(model, optimizer, 2)
    twin, again = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3)
    train(twin, again, 3)
    assert_same(weights(model), weights(twin))


def test_foreign_state_is_refused() -> None:
    model = network()
    foreign = torch.optim.Adam(model.parameters()).state_dict()
    with pytest.raises(ValueError, match=r"not the state of a IVON.*prior_precision"):
        ivon(model).load_state_dict(foreign)


def test_a_step_without_a_gradient_is_refused() -> None:
    model = network()
    with pytest.raises(RuntimeError, match=r"call loss.backward\(\) first"):
        Adam(model.parameters(), num_data=N).step()
    optimizer = ivon(model)
    with optimizer.sampled_params():
        pass
    backward(model, BATCHES[0])
    with pytest.raises(RuntimeError, match="no gradient at a draw"):
        optimizer.step()


@pytest.mark.parametrize("draws", [1, 2])
def test_a_closure_is_called_in_blocks_of_its_own(draws: int) -> None:
    models = network(), network()
    by_hand, by_closure = (ivon(model, draws=draws) for model in models)
    losses = []

    def closure() -> Tensor:
        by_closure.zero_grad()
        losses.append(backward(models[1], BATCHES[0]))
        return losses[-1]

    train(models[0], by_hand, 1, blocks=draws)
    loss = by_closure.step(closure)
    assert len(losses) == draws
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert_same(weights(models[0]), weights(models[1]))


def test_lr_of_the_group_is_the_truth() -> None:
    schedule = br.schedules.exponential(0.2, rate=0.5)
    options: dict[str, Any] = {"num_data": N, "rate": 0.1, "initial_curvature": 0.5}
    options |= {"learning_rate": schedule, "kl_clip": math.inf, "temperature": 1.0}
    learner = br.ivon(network(), br.CategoricalLikelihood(), **options)
    state, model = learner.init(), network()
    optimizer = ivon(model, initial_curvature=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in BATCHES:
        state, _ = learner.step(state, batch)
        with optimizer.sampled_params():
            backward(model, batch)
        optimizer.step()
        scheduler.step()
    assert_same(weights(model), state.posterior.mean, **CLOSE)


@pytest.mark.parametrize("blocks", [1, 2])
def test_clipping_the_gradient_clips_gradient_and_curvature(blocks: int) -> None:
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    for _ in range(blocks):
        with optimizers[0].sampled_params():
            backward(models[0], BATCHES[0])
    norm = nn.utils.clip_grad_norm_(models[0].parameters(), 0.01)
    for _ in range(blocks):
        with optimizers[1].sampled_params():
            backward(models[1], BATCHES[0], factor=float(0.01 / (norm + 1e-6)))
    for optimizer in optimizers:
        optimizer.step()
    assert norm > 0.1
    assert_same(weights(models[0]), weights(models[1]), rtol=1e-10, atol=1e-12)
    a, b = (optimizer.posterior.variance() for optimizer in optimizers)
    assert_same(a, b, rtol=1e-10, atol=1e-12)


def test_a_gradient_added_outside_never_raises_the_curvature() -> None:
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        with optimizer.sampled_params():
            backward(model, BATCHES[0])
    (1e6 * models[1][0].weight.sum()).backward()
    for optimizer in optimizers:
        optimizer.step()
    a, b = (optimizer.posterior.variance() for optimizer in optimizers)
    assert_same(a, b)


@pytest.mark.parametrize("unscale", [True, False])
def test_a_grad_scaler_changes_nothing(unscale: bool) -> None:
    models = network(torch.float32), network(torch.float32)
    optimizers = [ivon(model) for model in models]
    train(models[0], optimizers[0], 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # the scaler wants to have been used
    for batch in BATCHES[:3]:
        with optimizers[1].sampled_params():
            optimizers[1].zero_grad()
            backward(models[1], batch, factor=scaler.get_scale())
        if unscale:
            scaler.unscale_(optimizers[1])
        scaler.step(optimizers[1])
        scaler.update()
    assert_same(weights(models[0]), weights(models[1]), rtol=1e-5, atol=1e-6)
    a, b = (optimizer.posterior.variance() for optimizer in optimizers)
    assert_same(a, b, rtol=1e-5, atol=0.0)


def test_a_block_that_overflowed_is_forgotten() -> None:
    models = network(), network()
    optimizers = [ivon(model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        with optimizer.sampled_params():
            backward(model, BATCHES[0], factor=1.0 if model is models[0] else float("inf"))
    optimizers[0].zero_grad()
    for model, optimizer in zip(models, optimizers, strict=True):
        with optimizer.sampled_params():
            backward(model, BATCHES[1])
        optimizer.step()
    assert_same(weights(models[0]), weights(models[1]))
