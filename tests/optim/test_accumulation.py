"""Gradients of several batches before one step, and gradients that belong to no block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesrule.optim import IVON, SGD, Adam, BayesianOptimizer, RMSprop

X = torch.linspace(-1.0, 1.0, 24).reshape(8, 3).cos()
Y = X.sum(1, keepdim=True)
Build = Callable[..., BayesianOptimizer]
# So many data that a draw is the mean, up to rounding, and two draws are one.
OPTIONS: dict[Build, dict[str, Any]] = {
    IVON: {"num_data": 10**14, "initial_curvature": 1.0},
    SGD: {"num_data": 8},
    RMSprop: {"num_data": 8},
    Adam: {"num_data": 8},
}


def made(build: Build) -> tuple[nn.Module, BayesianOptimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    return model, build(model.named_parameters(), **OPTIONS[build])


def loss(model: nn.Module, rows: slice) -> Tensor:
    return 0.5 * (model(X[rows].double()) - Y[rows].double()).square().mean()


@pytest.mark.parametrize("build", OPTIONS)
@pytest.mark.parametrize("parts", [2, 4])
def test_blocks_of_several_batches_are_one_large_batch(build: Build, parts: int) -> None:
    results = []
    for number in (1, parts):
        model, optimizer = made(build)
        for _ in range(3):
            optimizer.zero_grad()
            size = 8 // number
            for i in range(number):
                with optimizer.sampled_params():
                    loss(model, slice(i * size, (i + 1) * size)).backward()
            optimizer.step()
        results.append(dict(model.named_parameters()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("build", OPTIONS)
def test_a_gradient_from_before_the_block_is_refused(build: Build) -> None:
    """As where a trainer calls its closure for the first batches and gives step() the last one."""
    model, optimizer = made(build)

    def closure() -> Tensor:
        found = loss(model, slice(0, 4)) / 2.0
        found.backward()
        return found

    for _ in range(2):
        optimizer.zero_grad()
        closure()
        with pytest.raises(RuntimeError, match=r"'weight' has a gradient from outside of sampled_"):
            optimizer.step(closure)
        optimizer.zero_grad()
        optimizer.step(closure)
        # Those that the step has used are no obstacle, nor are zeros.
        optimizer.step(closure)
        optimizer.zero_grad(set_to_none=False)
        optimizer.step(closure)


def test_gradients_of_an_earlier_training_are_no_obstacle() -> None:
    model = nn.Linear(3, 1).double()
    loss(model, slice(0, 8)).backward()
    optimizer = IVON(model.parameters(), num_data=8)
    with optimizer.sampled_params():
        optimizer.zero_grad()
        loss(model, slice(0, 8)).backward()
    optimizer.step()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("build", OPTIONS)
def test_a_gradient_that_is_not_finite_is_refused_by_name(build: Build, value: float) -> None:
    model, optimizer = made(build)
    before = [p.detach().clone() for p in model.parameters()]
    with optimizer.sampled_params():
        (loss(model, slice(0, 8)) * value).backward()
    with pytest.raises(ValueError, match=r"gradient of parameter 'weight' is not finite"):
        optimizer.step()
    optimizer.zero_grad()
    assert all(torch.allclose(p, old) for p, old in zip(model.parameters(), before, strict=True))
    with optimizer.sampled_params():
        loss(model, slice(0, 8)).backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_large_gradients_are_no_fault() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), num_data=1, lr=1e-40)
    (model(X) * 1e30).sum().backward()
    optimizer.step()


def test_weights_that_are_not_finite_are_refused_by_name() -> None:
    model = nn.Linear(3, 1)
    model.bias.data[0] = math.nan
    with pytest.raises(ValueError, match="Parameter 'bias' is not finite"):
        IVON(model.named_parameters(), num_data=8)
