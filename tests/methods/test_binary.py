"""BayesBiNN: nets of binary weights learn, alone and with real biases."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

import bayesrule as br
from bayesrule.methods import bayesbinn
from bayesrule.posteriors import Bernoulli, Product

Data = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Scaled(nn.Linear):
    """A layer whose outputs are scaled, for weights that are ±1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 / math.sqrt(self.in_features))


def net(width: int = 64) -> nn.Module:
    return nn.Sequential(
        *(Scaled(2, width), nn.Tanh(), Scaled(width, width), nn.Tanh(), Scaled(width, 1))
    )


def moons(count: int, seed: int) -> Data:
    """Two half circles about the origin, and in which of them a point lies."""
    x, y = make_moons(count, noise=0.1, random_state=seed)
    centred = (torch.tensor(x) - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])
    return centred.float(), torch.tensor(y).float().unsqueeze(1)


def learned(data: Data, steps: int, seed: int, **options: Any) -> tuple[br.Learner, br.types.State]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = net()
    learner = bayesbinn(model, br.BernoulliLikelihood(), num_data=len(data[0]), **options)
    state = learner.init(seed)
    for _ in range(steps):
        state, _ = learner.step(state, data, donate=True)
    return learner, state


def accuracy(learner: br.Learner, state: br.types.State, data: Data) -> float:
    """Of the mean over draws of binary weights, at other points."""
    mean = br.predict(learner, state, data[0], how=br.Draws(32)).mean
    return float(((mean > 0.5) == (data[1] > 0.5)).float().mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_two_moons_by_draws_of_binary_weights(seed: int) -> None:
    learner, state = learned(moons(150, seed), 1500, seed, temperature=0.01)
    assert isinstance(state.posterior, Bernoulli)
    draw = state.posterior.sample(torch.Generator().manual_seed(0))
    assert all(bool((value.abs() == 1.0).all()) for value in draw.values())
    assert accuracy(learner, state, moons(400, seed + 50)) >= 0.95


def test_real_biases_and_binary_weights() -> None:
    data = moons(150, 2)
    options: dict[str, Any] = {"real": "*.bias", "learning_rate": 0.003, "temperature": 0.01}
    learner, state = learned(data, 500, 2, **options)
    assert isinstance(state.posterior, Product)
    kinds = {group: part.words() for group, part in state.posterior.parts.items()}
    assert kinds == {"*.bias": "Gaussian over DiagonalMatrix", "*": "Bernoulli"}
    draw = state.posterior.sample(torch.Generator().manual_seed(0))
    assert bool((draw["0.weight"].abs() == 1.0).all())
    assert len(draw["0.bias"].unique()) == 64
    assert accuracy(learner, state, moons(400, 52)) >= 0.95


def test_a_real_bias_of_binary_weights_has_its_exact_posterior() -> None:
    """With the signs known, `b` has the mean of `y − x w` and the variance `noise² / n`."""
    source = torch.Generator().manual_seed(4)
    x, signs = torch.randn(100, 4, generator=source), torch.tensor([[1.0, -1.0, -1.0, 1.0]])
    y = x @ signs.T + 0.37 + 0.2 * torch.randn(100, 1, generator=source)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
    learner = bayesbinn(
        model,
        br.GaussianLikelihood(noise=0.2),
        num_data=100,
        real="bias",
        sure=0.0,
        learning_rate=br.schedules.cosine(0.1, 500, final=0.01),
    )
    state = learner.init(0)
    for _ in range(500):
        state, _ = learner.step(state, (x, y), donate=True)
    mean, variance = state.posterior.mean, state.posterior.variance()
    torch.testing.assert_close(mean["weight"], signs, rtol=0.0, atol=0.02)
    exact = float((y - x @ signs.T).mean())
    assert float(mean["bias"]) == pytest.approx(exact, abs=0.02)
    assert float(variance["bias"]) == pytest.approx(0.2**2 / 100, rel=0.4)


def test_earlier_binary_weights_are_the_prior_of_later_data() -> None:
    data = moons(150, 3)
    _, state = learned(data, 600, 3, temperature=0.01)
    again, start = learned(data, 0, 3, temperature=0.01, prior=state.posterior)
    assert float(state.posterior.kl(again.prior)) == pytest.approx(0.0, abs=0.05)
    assert float(start.posterior.kl(again.prior)) > 1.0
    _, later = learned(
        data, 20, 3, learning_rate=1.0, momentum=0.0, temperature=1e9, prior=state.posterior
    )
    for name, value in state.posterior.logits.items():  # type: ignore[attr-defined]
        torch.testing.assert_close(later.posterior.logits[name], value, rtol=1e-3, atol=1e-3)  # type: ignore[attr-defined]


def test_straight_through_steps_are_those_of_a_loop() -> None:
    """`w ← clip(w − α N ∇ℓ(sign w))`, the gradient averaged: Khan & Rue (2023), eq. 48."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=source)
    # One weight would like to be large, which the bounds do not allow.
    y = x @ torch.tensor([[4.0], [0.1], [-0.1]]) + torch.randn(20, 1, generator=source)
    model = nn.Linear(3, 1, bias=False)
    latent = model.weight.detach().clone()
    learner = br.ste(
        model, br.GaussianLikelihood(noise=1.0), num_data=20, learning_rate=0.02, momentum=0.5
    )
    state, average = learner.init(0), torch.zeros_like(latent)
    for step in range(1, 20):
        state, _ = learner.step(state, (x, y))
        signs = torch.where(latent < 0, -1.0, 1.0)
        slope = (x @ signs.T - y).T @ x
        average = 0.5 * average + 0.5 * slope
        latent = (latent - 0.02 * average / (1.0 - 0.5**step)).clamp(-1.0, 1.0)
        torch.testing.assert_close(state.posterior.logits["weight"], latent)  # type: ignore[attr-defined]
    assert bool((latent.abs() == 1.0).any())
    found = br.predict(learner, state, x)
    torch.testing.assert_close(found.mean, x @ torch.where(latent < 0, -1.0, 1.0).T)
    assert float(found.epistemic.max()) == 0.0


def test_real_weights_are_chosen_by_the_class_of_their_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    for method in (br.ste, br.bayesbinn):
        learner = method(model, br.BernoulliLikelihood(), num_data=50, real=nn.BatchNorm1d)
        state, _ = learner.step(learner.init(0), moons(50, 1))
        assert isinstance(state.posterior, Product)
        names = {part.words(): set(part.mean) for part in state.posterior.parts.values()}
        assert names["Gaussian over DiagonalMatrix"] == {"1.weight", "1.bias"}
        assert names["Bernoulli"] == {"0.weight", "0.bias", "3.weight", "3.bias"}
    with pytest.raises(ValueError, match="No weights are within layers of the class Conv1d"):
        br.ste(model, br.BernoulliLikelihood(), num_data=50, real=nn.Conv1d)
    with pytest.raises(TypeError, match="a class of layers such as"):
        br.PerGroup({1: br.MeanFieldFamily()})


def test_straight_through_learns_the_moons() -> None:
    data = moons(150, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = net()
    options: dict[str, Any] = {"learning_rate": br.schedules.cosine(1e-3, 600, final=1e-5)}
    learner = br.ste(model, br.BernoulliLikelihood(), num_data=150, real="*.bias", **options)
    state = learner.init(0)
    for _ in range(600):
        state, _ = learner.step(state, data, donate=True)
    other = moons(400, 50)
    mean = br.predict(learner, state, other[0]).mean
    assert float(((mean > 0.5) == (other[1] > 0.5)).float().mean()) >= 0.9
