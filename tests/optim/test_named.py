"""The named optimisers are the learners, and torch's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import optim as optimisers
from bayesrule.methods import COMMON
from bayesrule.optim import IVON, SGD, Adam, RMSprop
from optim.loops import (
    BATCHES,
    CLOSE,
    N,
    X,
    assert_same,
    backward,
    network,
    train,
    weights,
)


@pytest.mark.parametrize("draws", [1, 3])
def test_ivon_equals_the_learner(draws: int) -> None:
    options: dict[str, Any] = {"rate": 0.1, "num_data": N, "prior_precision": 2.0}
    options |= {"temperature": 0.7, "initial_curvature": 0.3, "clip": 0.5, "momentum": 0.8}
    rates = {"learning_rate": 0.2, "kl_clip": math.inf}
    learner = br.ivon(network(), br.CategoricalLikelihood(), **rates, draws=draws, **options)
    state = learner.init(seed=3)
    model = network()
    optimizer = IVON(model.named_parameters(), lr=0.2, seed=3, **options)
    for batch in BATCHES:
        state, _ = learner.step(state, batch)
    train(model, optimizer, len(BATCHES), blocks=draws)
    assert_same(weights(model), state.posterior.mean, **CLOSE)
    assert_same(optimizer.posterior.variance(), state.posterior.variance(), **CLOSE)


@pytest.mark.parametrize("prior_precision", [0.0, 3.0])
@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam"])
def test_methods_at_the_mean_equal_the_learners(name: str, prior_precision: float) -> None:
    settings: dict[str, Any] = {"num_data": N, "prior_precision": prior_precision}
    method, likelihood = br.methods.METHODS[name.lower()], br.CategoricalLikelihood()
    learner = method(network(), likelihood, learning_rate=0.02, **settings)
    state, model = learner.init(), network()
    optimizer = getattr(optimisers, name)(model.named_parameters(), lr=0.02, **settings)
    for batch in BATCHES:
        state, _ = learner.step(state, batch)
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()
    assert_same(weights(model), state.posterior.mean, **CLOSE)
    expected = state.posterior.precision.diagonal()
    assert_same(optimizer.posterior.precision.diagonal(), expected, **CLOSE)


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (Adam, lambda p: torch.optim.Adam(p, lr=0.02)),
        (SGD, lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
        (RMSprop, lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.99)),
    ],
)
def test_methods_at_the_mean_equal_torch(ours: type, torchs: Callable[..., Any]) -> None:
    a, b = network(), network()
    optimizers = (a, ours(a.parameters(), lr=0.02, num_data=N)), (b, torchs(b.parameters()))
    for model, optimizer in optimizers:
        for batch in BATCHES * 2:
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()
    assert_same(weights(a), weights(b), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adam", "IVON"])
def test_options_and_defaults_are_those_of_the_methods(name: str) -> None:
    ours, theirs = (
        {k.replace("learning_rate", "lr"): v.default for k, v in parameters.items()}
        for parameters in (
            inspect.signature(getattr(optimisers, name)).parameters,
            inspect.signature(br.methods.METHODS[name.lower()]).parameters,
        )
    )
    # Optimisers of torch take plain numbers, and leave schedules to torch.
    theirs["lr"] = theirs["lr"].value
    if name == "IVON":
        # An optimiser sees no batch before the first step, and clips as its users do.
        del theirs["kl_clip"]
        theirs |= {"initial_curvature": 2.0, "rate": 1e-3}
    assert {k: v for k, v in theirs.items() if k not in COMMON} == {
        k: v for k, v in ours.items() if k not in ("params", "settings")
    }


def test_ivon_finds_the_posterior_of_a_linear_model() -> None:
    x = X[:, :2]
    y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = IVON([weight], num_data=N, lr=0.1, rate=0.01, prior_precision=1.0)
    means = []
    for _ in range(800):
        with optimizer.sampled_params():
            (0.5 * (x @ weight - y).square().mean()).backward()
        optimizer.step()
        means.append(weight.detach().clone())
    hessian = x.T @ x + torch.eye(2, dtype=torch.float64)
    exact = torch.linalg.solve(hessian, x.T @ y)
    torch.testing.assert_close(torch.stack(means[300:]).mean(0), exact, rtol=0.0, atol=0.03)
    found = optimizer.posterior.precision.diagonal()["0"]
    torch.testing.assert_close(found, hessian.diagonal(), rtol=0.3, atol=0.0)
