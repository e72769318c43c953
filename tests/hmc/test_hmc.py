"""The reference sampler: exact posteriors met to sampling error, and what is refused."""

from __future__ import annotations

import math
import signal
import sys
import warnings
from types import FrameType
from typing import Any

import pytest
import torch
from exact import (
    DTYPE,
    GridPosterior,
    LinearRegression,
    close,
    logistic_log_joint,
    mlp,
    randn,
    with_ones,
)
from torch import Tensor, nn
from torch.distributions import Normal

import bayesrule as br
from bayesrule.hmc import Samples, ess, hmc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("nutpie", reason="needs bayesrule[hmc]")

SHORT: dict[str, Any] = {"draws": 50, "warmup": 50, "chains": 2, "compile": False}


def _data(n: int = 12, inputs: int = 2) -> tuple[Tensor, Tensor]:
    x = randn(n, inputs, seed=1)
    return x, x.sum(1, keepdim=True).tanh() + 0.3 * randn(n, 1, seed=2)


def _in_chains(values: Tensor, samples: Samples) -> Tensor:
    return values.unflatten(0, (samples.chains, -1))


def _agrees(values: Tensor, expected: Tensor, samples: Samples, z: float = 5.0) -> None:
    """The mean of draws (S, *) lies within `z` Monte Carlo errors, told by effective draws."""
    error = values.std(0) / ess(_in_chains(values, samples)).sqrt()
    worst = float(((values.mean(0) - expected).abs() / error).max())
    assert worst < z, f"{worst:.1f} Monte Carlo errors away"


@pytest.fixture(scope="module")
def regression() -> tuple[LinearRegression, Samples]:
    x, y = _data()
    exact = LinearRegression(with_ones(x), y.squeeze(1), noise=0.6, prior_precision=0.5)
    options = {**SHORT, "draws": 600, "warmup": 300, "chains": 4, "prior_precision": 0.5}
    samples = hmc(nn.Linear(2, 1), br.GaussianLikelihood(noise=0.6), (x, y), **options)
    return exact, samples


def test_linear_regression_has_its_exact_posterior(
    regression: tuple[LinearRegression, Samples],
) -> None:
    exact, samples = regression
    theta = torch.cat([samples.draws["weight"].flatten(1), samples.draws["bias"]], dim=1)
    _agrees(theta, exact.mean, samples)
    centred = theta - exact.mean
    products = centred.unsqueeze(1) * centred.unsqueeze(2)
    _agrees(products, torch.linalg.inv(exact.precision), samples)
    for name in ("weight", "bias", "outputs", "log density"):
        assert float(samples.rhat[name].max()) < 1.02
        assert float(samples.ess[name].min()) > 400
    assert samples.divergences == 0
    assert 0.6 < samples.acceptance < 0.99


def test_predictions_are_mixtures_over_the_draws(
    regression: tuple[LinearRegression, Samples],
) -> None:
    exact, samples = regression
    x = randn(7, 2, seed=9)
    found = samples.predict(x.numpy())
    mean, spread = exact.predictive(with_ones(x))
    close(found.mean.squeeze(1), mean, 0.05)
    close(found.epistemic.squeeze(1) / spread, torch.ones(7, dtype=DTYPE), 0.2)
    close(found.aleatoric, torch.full((7, 1), 0.36, dtype=DTYPE))
    total = Normal(mean, (spread + 0.36).sqrt())
    close(found.log_prob(torch.zeros(7, 1)), total.log_prob(torch.zeros(7, dtype=DTYPE)), 0.05)
    few = samples.predict(x, num=8, batch_size=3)
    assert few.num_components == 8
    w, b = (samples.draws[name][150::300] for name in ("weight", "bias"))
    close(few.conditional_means, x @ w.mT + b.unsqueeze(1))


def test_logistic_regression_at_a_temperature_meets_brute_force() -> None:
    x = randn(15, 2, seed=3)
    y = (x[:, 0] + 0.5 * randn(15, seed=4) > 0).double()
    cold = logistic_log_joint(x.repeat(2, 1), y.repeat(2), 1.0)
    exact = GridPosterior.around(cold, torch.zeros(2, dtype=DTYPE), 2.0 * torch.eye(2, dtype=DTYPE))
    model = nn.Linear(2, 1, bias=False)
    options = {**SHORT, "draws": 500, "warmup": 300, "temperature": 0.5}
    samples = hmc(model, br.BernoulliLikelihood(), (x, y), **options)
    theta = samples.draws["weight"].flatten(1)
    _agrees(theta, exact.mean, samples)
    centred = theta - exact.mean
    _agrees(centred.unsqueeze(1) * centred.unsqueeze(2), exact.covariance, samples)
    assert samples.predict(x).probs.shape == (15, 2)


def test_the_learned_precision_meets_brute_force() -> None:
    x, y = _data(inputs=1)
    y = torch.cat([y, 0.1 * randn(12, 1, seed=7)], dim=1)
    options = {**SHORT, "draws": 500, "warmup": 300}
    model = nn.Linear(1, 2, bias=False)
    samples = hmc(model, br.GaussianLikelihood(), (x, y), **options)
    theta = torch.linspace(-4, 4, 4001, dtype=DTYPE)
    b = 6.0 + 0.5 * (y[:, None, :] - theta[None, :, None] * x[:, None]).square().sum(0)
    weights = (-12.0 * b.log() - 0.5 * theta.square().unsqueeze(1)).softmax(0)
    _agrees(samples.draws["weight"].squeeze(2), (weights * theta.unsqueeze(1)).sum(0), samples)
    assert samples.precision is not None
    _agrees(samples.precision, (weights * 12.0 / b).sum(0), samples)
    _agrees(1.0 / samples.precision, (weights * b / 11.0).sum(0), samples)
    found = samples.predict(x)
    close(found.aleatoric, (1.0 / samples.precision).mean(0).expand(12, 2))
    close(found.components.scale[:, 0], samples.precision.rsqrt())
    assert samples.rhat["noise precision"].shape == (2,)


def test_a_deep_module_keeps_its_names_and_what_is_frozen() -> None:
    model = mlp(2, 3, 1)
    model[0].bias.requires_grad_(False)
    samples = hmc(model, br.GaussianLikelihood(), _data(), **SHORT)
    assert {name: tuple(value.shape) for name, value in samples.draws.items()} == {
        "0.weight": (100, 3, 2),
        "2.weight": (100, 1, 3),
        "2.bias": (100, 1),
    }
    assert samples.rhat["outputs"].shape == (12, 1)
    assert len(samples) == 100
    assert samples.gradients > 200
    values = torch.stack([samples.density(row) for row in _rows(samples)])
    close(samples.log_density, values)
    assert repr(samples).startswith("Samples(2 × 50 draws")


def _rows(samples: Samples) -> Tensor:
    return torch.cat([value.flatten(1) for value in samples.draws.values()], dim=1)


def test_the_seed_says_it_all_and_global_randomness_is_left_alone() -> None:
    first = hmc(nn.Linear(2, 1), br.GaussianLikelihood(), _data(), seed=3, **SHORT)
    second = hmc(nn.Linear(2, 1), br.GaussianLikelihood(), _data(), seed=3, **SHORT)
    other = hmc(nn.Linear(2, 1), br.GaussianLikelihood(), _data(), seed=4, **SHORT)
    assert torch.equal(_rows(first), _rows(second))
    assert first.precision is not None
    assert second.precision is not None
    assert torch.equal(first.precision, second.precision)
    assert not torch.equal(_rows(first), _rows(other))
    chains = _in_chains(_rows(first), first)
    assert not torch.equal(chains[0], chains[1])
    torch.manual_seed(5)
    model, expected = nn.Linear(2, 1), torch.rand(3)
    torch.manual_seed(5)
    nn.Linear(2, 1)
    hmc(model, br.GaussianLikelihood(), _data(), **SHORT)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chains": 0}, "chains is a whole number from 1 up, got 0"),
        ({"draws": 3}, "draws is a whole number from 4 up, got 3"),
        ({"draws": 10.5}, "draws is a whole number from 4 up, got 10.5"),
        ({"warmup": 0}, "warmup is a whole number from 10 up, got 0"),
        ({"seed": -1}, "seed is a whole number from 0 up, got -1"),
        ({"prior_precision": 0.0}, "prior_precision must be positive"),
        ({"temperature": math.nan}, "temperature must be positive"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hmc(nn.Linear(2, 1), br.GaussianLikelihood(), _data(), **{**SHORT, **options})


def test_bad_data_are_named() -> None:
    model, likelihood, (x, y) = nn.Linear(2, 1), br.GaussianLikelihood(), _data()
    hole = x.clone()
    hole[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"inputs are not finite in columns 1 .* first in row 3"):
        hmc(model, likelihood, (hole, y), **SHORT)
    with pytest.raises(ValueError, match=r"targets are not finite .*12 numbers .* first in row 0"):
        hmc(model, likelihood, (x, y * math.inf), **SHORT)
    with pytest.raises(ValueError, match="12 inputs but 11 targets"):
        hmc(model, likelihood, (x, y[:-1]), **SHORT)
    with pytest.raises(ValueError, match="GaussianLikelihood needs targets of the shape"):
        hmc(model, likelihood, (x, torch.cat([y, y], 1)), **SHORT)
    with pytest.raises(TypeError, match="plain inputs"):
        hmc(model, likelihood, (br.moments.uncertain(x, 0.1), y), **SHORT)


def test_bad_models_and_likelihoods_are_named() -> None:
    bare = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, track_running_stats=False))
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\).*track_running_stats=True"):
        hmc(bare, br.GaussianLikelihood(), _data(), **SHORT)
    moving = br.GaussianLikelihood(noise=br.schedules.exponential(1.0, rate=0.9))
    with pytest.raises(ValueError, match="a schedule of noise"):
        hmc(nn.Linear(2, 1), moving, _data(), **SHORT)
    with pytest.raises(TypeError, match=r"write GaussianLikelihood\(\)"):
        hmc(nn.Linear(2, 1), br.GaussianLikelihood, _data(), **SHORT)  # type: ignore[arg-type]


def test_bad_predictions_are_named(regression: tuple[LinearRegression, Samples]) -> None:
    _, samples = regression
    with pytest.raises(ValueError, match="from 1 to all 2400 draws, got 0"):
        samples.predict(torch.zeros(1, 2), num=0)
    with pytest.raises(ValueError, match="no inputs"):
        samples.predict(torch.zeros(0, 2))


def test_a_missing_sampler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[hmc\]'"):
        hmc(nn.Linear(2, 1), br.GaussianLikelihood(), _data(), **SHORT)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that interrupt")
def test_an_interrupt_stops_the_sampler() -> None:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            hmc(mlp(2, 20, 1), br.GaussianLikelihood(), _data(), draws=10**6, compile=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
