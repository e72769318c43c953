"""Frozen, unused, added and mixed parameters, and the belief over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.optim import IVON, SGD, Adam, BayesianOptimizer
from optim.loops import (
    BATCHES,
    N,
    assert_same,
    backward,
    ivon,
    network,
    train,
    weights,
)


def test_frozen_parameters_are_left_alone() -> None:
    model = network()
    model[0].requires_grad_(False)
    frozen = weights(model[0])
    optimizer = ivon(model)
    with optimizer.sampled_params():
        assert_same(weights(model[0]), frozen)
    train(model, optimizer, 3)
    assert_same(weights(model[0]), frozen)
    assert list(optimizer.posterior.mean) == ["2.weight", "2.bias"]


def test_a_parameter_unfrozen_later_starts_anew() -> None:
    """Its averages are corrected by its own age, so its first step is a first step of Adam."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = Adam(model.parameters(), num_data=N, lr=0.01)
    train(model, optimizer, 20)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    train(model, optimizer, 1)
    moved = (model[0].weight - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0.0)
    model[0].requires_grad_(False)
    kept = weights(model[0])
    train(model, optimizer, 1)
    assert_same(weights(model[0]), kept)


def test_of_an_unused_parameter_only_the_prior_acts() -> None:
    used = nn.Parameter(torch.ones(2, dtype=torch.float64))
    unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = IVON([used, unused], num_data=10, lr=0.1, rate=0.1, prior_precision=2.0)
    for _ in range(300):
        with optimizer.sampled_params():
            (3.0 * used.square()).sum().backward()
        assert unused.grad is None
        optimizer.step()
    belief = optimizer.posterior
    assert unused.abs().max() < 1e-6
    torch.testing.assert_close(belief.precision.diagonal()["1"], torch.full_like(unused, 2.0))


def test_types_may_be_mixed() -> None:
    model = nn.ModuleList([nn.Linear(2, 2).to(t) for t in (torch.float32, torch.float64)])
    model.append(nn.Linear(2, 2).bfloat16())
    optimizer = ivon(model)
    for _ in range(3):
        for _ in range(2):
            with optimizer.sampled_params():
                x = torch.ones(1, 2)
                for layer in model:
                    x = layer(x.to(layer.weight.dtype))
                x.float().square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    kinds = [v.dtype for v in optimizer.posterior.mean.values()]
    assert kinds == [torch.float32] * 2 + [torch.float64] * 2 + [torch.float32] * 2
    assert [p.dtype for p in model[2].parameters()] == [torch.bfloat16] * 2
    assert all(p.isfinite().all() for p in model.parameters())


def test_small_steps_of_half_precision_weights_are_not_lost() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = SGD([weight], num_data=1, lr=2e-4, momentum=0.0)
    for _ in range(500):
        optimizer.zero_grad()
        weight.float().sum().backward()
        optimizer.step()
    torch.testing.assert_close(weight.float(), torch.tensor([0.9]), rtol=0.0, atol=4e-3)
    with torch.no_grad():
        weight.fill_(5.0)  # somebody else's change is respected
    assert optimizer.posterior.mean["0"].item() == 5.0


def test_groups_have_their_own_lr_and_prior() -> None:
    a, b = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [a], "lr": 0.5}, {"params": [b], "prior_precision": 4.0}]
    optimizer = SGD(groups, num_data=2, lr=0.1, momentum=0.0)
    (a + b).sum().backward()
    optimizer.step()
    # The precision is N + δ; the step is lr (N ĝ + δ m) / (N + δ).
    assert a.item() == pytest.approx(1.0 - 0.5)
    assert b.item() == pytest.approx(1.0 - 0.1 * (2.0 + 4.0) / (2.0 + 4.0))
    assert optimizer.posterior.precision.diagonal()["1"].item() == 6.0


def test_parameters_added_later_join_the_belief() -> None:
    model, head = network(), nn.Linear(2, 2, dtype=torch.float64)
    optimizer = ivon(model)
    train(model, optimizer, 4)
    group = {"params": [("head." + k, v) for k, v in head.named_parameters()], "lr": 0.05}
    optimizer.add_param_group(group)
    before = head.weight.detach().clone()
    whole = nn.Sequential(model, head)
    train(whole, optimizer, 2)
    assert not torch.equal(head.weight, before)
    assert list(optimizer.posterior.mean)[-2:] == ["head.weight", "head.bias"]
    assert [group["step"] for group in optimizer.param_groups] == [6, 2]
    assert optimizer.state[head.weight]["step"] == 2


def test_parameters_that_join_between_block_and_step_are_refused() -> None:
    model, late = network(), nn.Parameter(torch.zeros(2))
    optimizer = ivon(model)
    with optimizer.sampled_params():
        backward(model, BATCHES[0])
    optimizer.add_param_group({"params": [("late", late)]})
    with pytest.raises(RuntimeError, match=r"do so after step\(\)"):
        optimizer.step()


def test_groups_draw_different_noise() -> None:
    a, b = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))
    optimizer = IVON([{"params": [a]}, {"params": [b]}], num_data=N)
    with optimizer.sampled_params():
        assert not torch.equal(a, b)


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1))
    optimizer = ivon(model)

    def block() -> None:
        with optimizer.sampled_params():
            model(torch.tensor([1, 2])).sum().backward()

    before = weights(model)
    with pytest.raises(TypeError, match=r"'0.weight'.*sparse_coo.*sparse=False"):
        block()
    assert_same(weights(model), before)
    adam = Adam(model.named_parameters(), num_data=N)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match=r"'0.weight'"):
        adam.step()
    assert_same(weights(model), before)


def test_the_posterior_before_the_first_step() -> None:
    model = network()
    belief = ivon(model, initial_curvature=0.5, prior_precision=3.0).posterior
    assert_same(belief.mean, weights(model))
    assert all((v == 0.5 * N + 3.0).all() for v in belief.precision.diagonal().values())
    assert belief.kl(3.0) > 0


def test_the_posterior_goes_by_place_without_names() -> None:
    model = network()
    optimizer = IVON(model.parameters(), num_data=N)
    train(model, optimizer, 1)
    held = optimizer.posterior
    assert list(held.mean) == ["0", "1", "2", "3"]
    before = {k: v.clone() for k, v in held.mean.items()}
    train(model, optimizer, 1)
    assert_same(held.mean, before)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"curvature": br.PerExample()}, r"PerExample\(\); use Price\(\)"),
        ({"posterior": br.GaussianFamily(br.Dense())}, r"one precision for each weight.*Dense"),
        ({"expectation": br.AtMean()}, r"needs weight draws"),
        ({"rule": "natural"}, r"rule takes a Natural\(...\), got 'natural'"),
        ({"num_data": 0}, "must be positive, got num_data=0"),
        ({"temperature": 0.0}, "must be positive, got num_data=40 and temperature=0.0"),
        ({"prior_precision": -1.0}, "prior_precision takes a number that is not negative"),
        (
            {"rule": br.Natural(br.schedules.constant(0.1), retract=True)},
            r"lr takes a number.*lr_scheduler",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {
        "num_data": N,
        "posterior": br.GaussianFamily(),
        "expectation": br.Draws(1),
        "curvature": br.Price(),
        "rule": br.Natural(retract=True),
    }
    BayesianOptimizer(network().parameters(), **fitting)
    with pytest.raises((TypeError, ValueError), match=message):
        BayesianOptimizer(network().parameters(), **(fitting | parts))
