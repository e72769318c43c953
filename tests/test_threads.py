"""One learner in several threads: nobody sees another's weights, and the module stays as it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.tensors.network import Network

THREADS, ROUNDS = 4, 40


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.2), nn.Tanh(), nn.Linear(20, 1))


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """What the work gives for each round, done by all threads at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS * ROUNDS)))


def own_tensors(model: nn.Module) -> dict[tuple[int, str], int]:
    return {
        (i, key): id(value)
        for i, module in enumerate(model.modules())
        for store in (module._parameters, module._buffers)
        for key, value in store.items()
    }


@pytest.mark.parametrize("how", [br.Draws(2), br.AtMean(), br.Linearised()], ids=repr)
def test_predictions(how: Any) -> None:
    model, x = net(), torch.randn(5, 3)
    learner = br.vogn(model, br.GaussianLikelihood(noise=0.3), num_data=10)
    states = [learner.init(seed) for seed in range(4)]
    for seed, state in enumerate(states):
        batch = torch.randn(10, 3), torch.randn(10, 1)
        states[seed], _ = learner.step(state, batch)
    before, modes = own_tensors(model), [module.training for module in model.modules()]
    alone = [br.predict(learner, state, x, how).mean for state in states]
    found = in_threads(lambda i: br.predict(learner, states[i % 4], x, how).mean)
    for i, mean in enumerate(found):
        assert torch.equal(mean, alone[i % 4])
    assert own_tensors(model) == before
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", ["vogn", "mean_field", "noisy_kfac", "tagi"])
def test_steps(name: str) -> None:
    """Dropout draws from torch's one global state, which no thread takes from another."""
    model, batch = net(), (torch.randn(8, 3), torch.randn(8, 1))
    if name == "tagi":
        model[1].eval()
    learner = br.methods.METHODS[name](model, br.GaussianLikelihood(noise=0.3), num_data=8)
    before, random = own_tensors(model), torch.get_rng_state()

    def mean(seed: int) -> dict[str, Tensor]:
        state, _ = learner.step(learner.init(seed % 4), batch)
        return state.posterior.mean

    alone = [mean(seed) for seed in range(4)]
    for i, found in enumerate(in_threads(mean)):
        assert all(torch.equal(value, alone[i % 4][key]) for key, value in found.items())
    assert own_tensors(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_the_estimator_of_scikit_learn() -> None:
    estimators = pytest.importorskip("bayesrule.sklearn")
    x = np.linspace(-1.0, 1.0, 60).reshape(20, 3)
    model = estimators.BayesRegressor("vogn", epochs=2, random_state=0).fit(x, x.sum(1))
    rows = [x[:5], x[5:10], x[10:15], x[15:]]
    alone = [model.predict(part, return_std=True) for part in rows]
    found = in_threads(lambda i: model.predict(rows[i % 4], return_std=True))
    for i, pair in enumerate(found):
        np.testing.assert_array_equal(pair, alone[i % 4])


class Slow(nn.Module):
    """A module that waits in the middle of a call, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("count", torch.zeros(()))
        self.entered, self.go, self.fails = threading.Event(), threading.Event(), False

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.entered.set()
        self.go.wait(10.0)
        if self.fails:
            raise KeyError("in the module")
        return self.layer(x)


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_its_own_while_a_call_runs(fails: bool) -> None:
    model = Slow()
    model.fails = fails
    network, before = Network(model), own_tensors(model)
    given = {name: torch.zeros_like(value) for name, value in network.params().items()}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(network, given, network.buffers(), torch.ones(2, 1), training=False)
        assert model.entered.wait(10.0)
        assert own_tensors(model) == before
        assert model.training
        model.go.set()
        if fails:
            with pytest.raises(KeyError, match="in the module"):
                call.result()
        else:
            assert torch.equal(call.result(), torch.zeros(2, 1))
    assert own_tensors(model) == before
    assert float(model.count) == 0.0  # type: ignore[arg-type]
