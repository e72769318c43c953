"""Outputs at many weights in one pass are those of the module called with each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import bayesrule as br
from bayesrule.predicting import at_weights
from bayesrule.predicting.at_weights import Passes, outputs_at
from bayesrule.tensors import products, seeds
from bayesrule.tensors.network import Network
from bayesrule.types import State

NUM = 7


class Own(nn.Module):
    """A module that is no chain; what its parts do is written in `forward`."""

    def __init__(self, act: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(3, 5), nn.Linear(5, 2), act

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


class Looks(Own):
    """It chooses by its weights, over which torch does not map."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if self.first.weight.sum() > 0 else -out


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), (3,)),
    "frozen bias": (_frozen, (3,)),
    "own forward": (Own, (3,)),
    "looks at its weights": (Looks, (3,)),
    "rows of positions": (lambda: nn.Sequential(nn.Linear(3, 2)), (4, 3)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 2)
        ),
        (1, 5, 5),
    ),
    "recurrent": (lambda: br.Output(nn.LSTM(3, 4, batch_first=True), 0), (6, 3)),
}


def one_by_one(learner: br.Learner, state: State, x: Tensor, how: Any, seed: int) -> Tensor:
    """torch's own calls of the module, draw after draw."""
    model = learner.model.eval()
    generator = seeds.generator("cpu", seed, 0)
    points = how.points(state.posterior, generator, tracked=False)
    with torch.no_grad():
        return torch.stack([functional_call(model, dict(one.plain), (x,)) for one in points])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["mean_field", "vogn", "noisy_kfac", "k_tied"])
def test_draws_together_are_draws_one_after_another(name: str, method: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    learner = getattr(br, method)(make(), br.GaussianLikelihood(noise=0.1), num_data=50)
    state, x = learner.init(), torch.randn(9, *shape)
    how = br.Draws(NUM)
    expected = one_by_one(learner, state, x, how, seed=3)
    for batch_size in (4096, 4):
        found = outputs_at(learner, state, x, how, seed=3, batch_size=batch_size)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_several_go_through_in_one_pass() -> None:
    calls: list[int] = []

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return torch.tanh(x)

    learner = br.vogn(Own(counted), br.GaussianLikelihood(noise=0.1), num_data=50)
    state, x = learner.init(), torch.randn(9, 3)
    outputs_at(learner, state, x, br.Draws(NUM))
    assert learner.network.maps_weights
    assert len(calls) == 3  # One pass of all draws, and two that it is compared with.
    outputs_at(learner, state, x, br.Draws(NUM))
    assert len(calls) == 4


def test_a_module_that_draws_by_itself_is_called_for_each_draw() -> None:
    numbers = np.random.default_rng(0)
    model = Own(lambda x: x * torch.as_tensor(numbers.random(5), dtype=x.dtype))
    learner = br.vogn(model, br.GaussianLikelihood(noise=0.1), num_data=50)
    state = learner.init()
    fixed = br.posteriors.Gaussian(state.posterior.mean, state.posterior.precision.times(1e12))
    found = outputs_at(learner, replace(state, posterior=fixed), torch.ones(9, 3), br.Draws(NUM))
    assert learner.network.maps_weights is False
    assert len({round(float(one[0, 0]), 4) for one in found}) == NUM


def test_how_many_go_together_is_bounded() -> None:
    model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1))
    network = Network(model)
    size = sum(v.numel() for v in model.parameters())
    for rows in (1, 10, 1000):
        passes = Passes(network, {}, torch.zeros(rows, 10), 4096)
        assert passes.at_once * size * max(8, rows) <= at_weights._MOST_ON_CPU
    assert Passes(network, {}, torch.zeros(10**6, 10), 10**6).at_once == 1
    assert Passes(network, {}, torch.zeros(10**6, 10), 10).at_once > 1


def test_draws_of_several_passes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = br.vogn(Own(), br.GaussianLikelihood(noise=0.1), num_data=50)
    state, x = learner.init(), torch.randn(2, 3)
    whole = outputs_at(learner, state, x, br.Draws(NUM))
    monkeypatch.setattr(at_weights, "_MOST_ON_CPU", 32 * 8 * 3)  # Three of 32 weights at a time.
    assert Passes(learner.network, state.buffers, x, 4096).at_once == 3
    torch.testing.assert_close(outputs_at(learner, state, x, br.Draws(NUM)), whole)


def test_an_error_of_the_module_is_its_own() -> None:
    learner = br.vogn(Own(), br.GaussianLikelihood(noise=0.1), num_data=50)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        outputs_at(learner, learner.init(), torch.zeros(4, 7), br.Draws(NUM))


@pytest.mark.skipif(not products._has_product(), reason="torch without oneDNN")
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_another_library_gives_the_same_product(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], bias: bool
) -> None:
    seen: list[object] = []
    linear = torch.ops.mkldnn._linear_pointwise

    def noted(*given: Any) -> Tensor:
        seen.append(given)
        return linear(*given)

    monkeypatch.setattr(products, "_amd", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", noted)
    layer, x = nn.Linear(3, 6, bias=bias), torch.randn(shape)
    expected = layer.double()(x.double()).float()
    layer.float()
    with torch.no_grad(), products.quick_products():
        torch.testing.assert_close(layer(x), expected)
        assert len(seen) == 1
        layer.double()(x.double())  # Other kinds of numbers stay where they were.
    with products.quick_products():
        layer.float()(x).sum().backward()  # So do slopes.
    assert len(seen) == 1
