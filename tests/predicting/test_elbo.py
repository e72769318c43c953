"""The evidence lower bound against the evidence of linear regression, which is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from exact import DTYPE, close, randn
from torch import Tensor, nn
from torch.distributions import Gamma, MultivariateNormal, kl_divergence

import bayesrule as br
from bayesrule import GaussianLikelihood, Learner
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.predicting import elbo
from bayesrule.types import State

PRIOR, SHAPE, RATE = 1.3, 6.0, 6.0
TRUTH = torch.tensor([1.0, -0.5], dtype=DTYPE)
METHODS = ("mean_field", "vogn", "noisy_full", "noisy_kfac", "ogn", "variational_laplace", "ridge")


def data(num: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    x = randn(num, 2, seed=seed)
    return x, x @ TRUTH + noise * randn(num, seed=seed + 50)


def log_evidence(x: Tensor, y: Tensor, noise: float) -> Tensor:
    """`log N(y; 0, X Xᵀ / δ + noise² I)`."""
    covariance = x @ x.mT / PRIOR + noise**2 * torch.eye(len(y), dtype=DTYPE)
    return MultivariateNormal(torch.zeros(len(y), dtype=DTYPE), covariance).log_prob(y)


def log_evidence_of_learned_noise(x: Tensor, y: Tensor) -> Tensor:
    """The same, with τ = noise⁻² ~ Gamma(6, 6) integrated out on a fine grid of log τ."""
    grid = torch.linspace(-6.0, 12.0, 3001, dtype=DTYPE)
    prior = Gamma(torch.tensor(SHAPE, dtype=DTYPE), torch.tensor(RATE, dtype=DTYPE))
    each = [log_evidence(x, y, float(t.exp()) ** -0.5) + prior.log_prob(t.exp()) + t for t in grid]
    return torch.stack(each).logsumexp(0) + math.log(float(grid[1] - grid[0]))


def learner_of(name: str, likelihood: GaussianLikelihood, num: int, **options: Any) -> Learner:
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(TRUTH)
    return getattr(br, name)(model, likelihood, num_data=num, prior_precision=PRIOR, **options)


def trained(learner: Learner, batch: tuple[Tensor, Tensor], steps: int, seed: int) -> State:
    state = learner.init(seed)
    for _ in range(steps):
        state, _ = learner.step(state, batch)
    return state


@pytest.mark.parametrize("seed", range(3))
def test_of_the_exact_belief_it_is_the_evidence(seed: int) -> None:
    x, y = data(20, 0.6, seed)
    learner = learner_of("ridge", GaussianLikelihood(noise=0.6), 20)
    state, info = learner.step(learner.init(), (x, y))
    evidence = log_evidence(x, y, 0.6)
    close(elbo(learner, state, (x, y), br.Draws(20_000, antithetic=True)), evidence, 2e-2)
    # Sixteen draws, of a variance of half a nat for each of two weights.
    assert abs(float(info.elbo - evidence)) < 2.0


@pytest.mark.parametrize("seed", range(3))
def test_where_only_the_noise_is_learned_it_is_the_evidence(seed: int) -> None:
    """Inputs of zero teach nothing of the weights, and the first step is conjugate."""
    x, y = torch.zeros(20, 2, dtype=DTYPE), 0.3 * randn(20, seed=seed)
    learner = learner_of("ridge", GaussianLikelihood(), 20)
    state, info = learner.step(learner.init(), (x, y))
    a, b = SHAPE + 10.0, RATE + 0.5 * float(y.square().sum())
    student = math.lgamma(a) - math.lgamma(SHAPE) + SHAPE * math.log(RATE) - a * math.log(b)
    wanted = torch.tensor(student - 10.0 * math.log(2.0 * math.pi), dtype=DTYPE)
    close(log_evidence_of_learned_noise(x, y), wanted, 1e-9)
    close(elbo(learner, state, (x, y)), wanted, 1e-9)
    close(info.elbo, wanted, 1e-9)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_it_is_below_the_evidence_when_noise_is_learned(name: str, noise: float) -> None:
    for seed in range(2):
        x, y = data(200, noise, seed)
        evidence = float(log_evidence_of_learned_noise(x, y))
        learner = learner_of(name, GaussianLikelihood(), 200)
        for steps in (1, 100):
            state = trained(learner, (x, y), steps, seed)
            assert float(elbo(learner, state, (x, y), br.Draws(500))) < evidence + 0.1
            infos = [learner.step(state, (x, y))[1]]
            for _ in range(20):
                state, info = learner.step(state, (x, y))
                infos.append(info)
            bounds = torch.stack([info.elbo for info in infos])
            error = float(bounds.std()) / len(bounds) ** 0.5
            assert float(bounds.mean()) < evidence + 3.0 * error + 0.1


def test_the_learned_noise_has_a_divergence() -> None:
    likelihood = GaussianLikelihood()
    assert likelihood.kl(likelihood.init(torch.zeros(()))) == 0.0
    assert GaussianLikelihood(noise=0.1).kl({}) == 0.0
    state = {"a": torch.tensor(30.0, dtype=DTYPE), "b": torch.tensor([2.0, 40.0], dtype=DTYPE)}
    prior = Gamma(torch.tensor(SHAPE, dtype=DTYPE), torch.tensor(RATE, dtype=DTYPE))
    wanted = kl_divergence(Gamma(state["a"].expand(2), state["b"]), prior).sum()
    close(torch.as_tensor(likelihood.kl(state)), wanted, 1e-12)


def exact_in_each_step(num: int = 20) -> Learner:
    """Independent weights of a linear map by the exact ELBO: nothing is drawn."""
    return br.Learner(
        nn.Linear(2, 1, bias=False).double(),
        GaussianLikelihood(),
        num_data=num,
        posterior=br.MeanFieldFamily(),
        expectation=br.Moments(),
        curvature=br.curvature.ExpectedLoss(),
        rule=br.Elbo(),
        predictive=br.Moments(),
    )


@pytest.mark.parametrize("donate", [False, True])
def test_the_bound_of_a_step_is_of_the_belief_that_it_makes(donate: bool) -> None:
    x, y = data(20, 0.3, 0)
    learner = exact_in_each_step()
    state = learner.init()
    for _ in range(3):
        state, info = learner.step(state, (x, y), donate=donate)
        again = learner.step(state, (x, y))[1]
        close(info.elbo, -again.loss - info.kl, 1e-12)
        assert float(info.kl) > float(state.posterior.kl(1.0)) + 0.1
        drawn = elbo(learner, state, (x, y), br.Draws(4000, antithetic=True))
        assert abs(float(info.elbo - drawn)) < 0.5


@pytest.mark.parametrize("name", ["mean_field", "vogn", "ogn"])
def test_bounds_of_stacked_nets_are_those_of_each(name: str) -> None:
    x, y = data(20, 0.3, 0)
    learner = learner_of(name, GaussianLikelihood(), 20)
    stack, both = Stacked(learner, 2), (x.expand(2, 20, 2), y.expand(2, 20))
    _, info = stack.step(stack.init([3, 4]), both)
    for i, one in enumerate(stack.unstack(stack.init([3, 4]))):
        close(info.elbo[i], learner.step(one, (x, y))[1].elbo, 1e-9)
    assert info.kl.shape == info.elbo.shape == (2,)
