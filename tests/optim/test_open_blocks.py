"""Blocks that a trainer's events open and close, and gradients that are added."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bayesrule.optim import Adam, BayesianOptimizer
from optim.loops import (
    BATCHES,
    CLOSE,
    N,
    X,
    assert_same,
    backward,
    ivon,
    network,
    train,
    weights,
)

Build = Callable[[nn.Module], BayesianOptimizer]


def adam(model: nn.Module) -> BayesianOptimizer:
    return Adam(model.named_parameters(), num_data=N)


def beliefs(optimizer: BayesianOptimizer) -> dict[str, Tensor]:
    belief = optimizer.posterior
    return {**belief.mean, **{f"{k} variance": v for k, v in belief.variance().items()}}


@pytest.mark.parametrize("build", [ivon, adam])
@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.5], [0.25, 0.25, 0.5]])
def test_added_blocks_of_shares_are_averaged_blocks(build: Build, shares: list[float]) -> None:
    """The mean of `K s_k` times the losses is the sum of `s_k` times them."""
    found = []
    for add in (False, True):
        model = network()
        optimizer = build(model)
        for _ in range(3):
            for batch, share in zip(BATCHES, shares, strict=False):
                with optimizer.sampled_params(add=add):
                    backward(model, batch, share if add else share * len(shares))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        found.append(beliefs(optimizer))
    assert_same(*found, **CLOSE)


@pytest.mark.parametrize("build", [ivon, adam])
def test_a_block_that_is_opened_and_closed_is_one_that_is_entered(build: Build) -> None:
    models = network(), network()
    one, two = (build(model) for model in models)
    train(models[0], one, 4)
    for i in range(4):
        two.begin_draw()
        two.zero_grad()
        backward(models[1], BATCHES[i])
        two.end_draw()
        two.end_draw()  # nothing is open, so nothing happens
        two.step()
    assert_same(beliefs(one), beliefs(two))


def test_a_block_that_is_not_kept_leaves_nothing() -> None:
    model = network()
    optimizer = ivon(model)
    train(model, optimizer, 1)
    before, grads = weights(model), [p.grad for p in model.parameters()]
    optimizer.begin_draw()
    assert not torch.equal(model[0].weight, before["0.weight"])
    backward(model, BATCHES[0])
    optimizer.end_draw(keep=False)
    assert_same(weights(model), before)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    with pytest.raises(RuntimeError, match="no gradient at a draw"):
        optimizer.step()


def test_a_closure_runs_in_the_block_that_is_open_and_has_to_end_it() -> None:
    models = network(), network()
    one, two = ivon(models[0], draws=2), ivon(models[1], draws=2)
    with one.sampled_params():
        backward(models[0], BATCHES[0])
    one.step()
    two.begin_draw()

    def closure() -> Tensor:
        loss = backward(models[1], BATCHES[0])
        two.end_draw()
        return loss

    assert two.step(closure) is not None
    assert_same(beliefs(one), beliefs(two))
    two.begin_draw()
    with pytest.raises(RuntimeError, match=r"step\(\) was called inside"):
        two.step(lambda: backward(models[1], BATCHES[0]))


def test_draws_for_predictions_begin_anew_and_training_does_not_notice() -> None:
    models = network(), network()
    one, two = ivon(models[0]), ivon(models[1])
    outputs = []
    for _ in range(2):
        one.rewind()
        for _ in range(2):
            with one.sampled_params(train=False), torch.no_grad():
                outputs.append(models[0](X))
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
    train(models[0], one, 2)
    train(models[1], two, 2)
    assert_same(beliefs(one), beliefs(two))
