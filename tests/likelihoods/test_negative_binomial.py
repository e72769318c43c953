"""Counts with more spread than Poisson's, against scipy."""

import math

import numpy as np
import pytest
import torch
from contracts.likelihood import OneOutputContract
from exact import DTYPE, close, generator, randn, z_close
from scipy import special, stats  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributions import Distribution, NegativeBinomial

import bayesrule as br
from bayesrule.likelihoods import (
    NegativeBinomialLikelihood,
    NegativeBinomialTargets,
    PoissonLikelihood,
)
from bayesrule.likelihoods.negative_binomial import incomplete_beta

DISPERSIONS = (1e-4, 0.1, 0.5, 3.0, 40.0)


def frozen(log_mean: Tensor, dispersion: float) -> stats.rv_discrete:
    """The same distribution as scipy has it."""
    r = 1.0 / dispersion
    return stats.nbinom(r, r / (r + log_mean.exp().numpy()))


class TestNegativeBinomial(OneOutputContract):
    likelihood = NegativeBinomialLikelihood(dispersion=0.6)
    outputs = 0.7 * randn(4, 1, seed=3) + 0.5
    targets = torch.tensor([[0.0], [3.0], [1.0], [7.0]], dtype=DTYPE)
    bad_targets = (torch.tensor([[0.0], [-1.0], [2.0], [0.0]]), torch.full((4, 1), 0.5))
    glm = False

    def reference(self, outputs: Tensor) -> Distribution:
        return NegativeBinomial(torch.tensor(1 / 0.6, dtype=DTYPE), logits=outputs + math.log(0.6))

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(0.0, 400.0, dtype=DTYPE), 1.0


@pytest.mark.parametrize("dispersion", DISPERSIONS)
def test_it_is_scipys(dispersion: float) -> None:
    log_mean = torch.linspace(-6.0, 7.0, 27, dtype=DTYPE).expand(20, 27)
    y = (log_mean.exp() * torch.logspace(-1.5, 1.0, 20, dtype=DTYPE).unsqueeze(1)).floor()
    found, wanted = NegativeBinomialTargets(log_mean, dispersion), frozen(log_mean, dispersion)
    np.testing.assert_allclose(found.mean, wanted.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.variance, wanted.var(), rtol=1e-9)
    np.testing.assert_allclose(found.log_prob(y), wanted.logpmf(y), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.cdf(y), wanted.cdf(y), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.cdf(y + 0.7), wanted.cdf(y), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dispersion", DISPERSIONS)
@pytest.mark.parametrize("level", [0.01, 0.37, 0.9, 0.999])
def test_quantiles_are_scipys(dispersion: float, level: float) -> None:
    log_mean = torch.linspace(-3.0, 6.0, 13, dtype=DTYPE)
    found = NegativeBinomialTargets(log_mean, dispersion).quantile(level)
    wanted = frozen(log_mean, dispersion).ppf(level)
    # Where the cdf meets the level to the last digits either neighbour is right.
    clear = np.abs(frozen(log_mean, dispersion).cdf(wanted) - level) > 1e-9
    np.testing.assert_array_equal(found.numpy()[clear], wanted[clear])


def test_single_precision_keeps_its_digits_where_large_terms_cancel() -> None:
    log_mean, y = torch.linspace(-2.0, 5.0, 8), torch.arange(8.0) ** 2
    found = NegativeBinomialTargets(log_mean, 1e-5).log_prob(y)
    wanted = frozen(log_mean.double(), 1e-5).logpmf(y)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_incomplete_beta_is_scipys() -> None:
    a, b = (torch.logspace(-3.0, 4.0, 15, dtype=DTYPE) for _ in range(2))
    a, b, x = torch.meshgrid(a, b, torch.linspace(1e-4, 1 - 1e-4, 21, dtype=DTYPE), indexing="ij")
    wanted = special.betainc(a.numpy(), b.numpy(), x.numpy())
    np.testing.assert_allclose(incomplete_beta(a, b, x.logit()), wanted, rtol=1e-9, atol=1e-10)


def test_a_small_dispersion_is_poisson() -> None:
    outputs, y = randn(5, 1, seed=1), torch.tensor([[0.0], [1.0], [2.0], [5.0], [9.0]])
    near, limit = NegativeBinomialLikelihood(dispersion=1e-7), PoissonLikelihood()
    close(near.log_prob(outputs, y, {}), limit.log_prob(outputs, y, {}), 1e-5)
    close(near.fisher_vectors(outputs, {}), limit.fisher_vectors(outputs, {}), 1e-6)
    ends = near.distribution(outputs, {}), limit.distribution(outputs, {})
    close(ends[0].cdf(y.double()), ends[1].cdf(y.double()), 1e-5)


def test_draws_leave_torchs_own_randomness_alone() -> None:
    before = torch.get_rng_state()
    NegativeBinomialLikelihood().sample(torch.zeros(100, 1), {}, generator(1))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dispersion", [0.0, -1.0, math.inf, math.nan])
def test_a_dispersion_that_is_none_is_refused(dispersion: float) -> None:
    with pytest.raises(ValueError, match=r"dispersion must be positive.*PoissonLikelihood"):
        NegativeBinomialLikelihood(dispersion=dispersion)


@pytest.mark.parametrize("how", [br.Draws(50), br.AtMean(), br.Linearised()])
def test_a_network_learns_and_predicts_counts(
    how: br.expectations.Expectation | br.Linearised,
) -> None:
    """`log μ = 1 + x`, and predictions sample what they state."""
    x = 2.0 * torch.rand(400, 1, generator=generator(1)) - 1.0
    likelihood = NegativeBinomialLikelihood(dispersion=0.3)
    y = likelihood.sample(1.0 + x, {}, generator(2))
    learner = br.laplace(nn.Linear(1, 1), likelihood, num_data=400, learning_rate=0.05)
    run = br.fit(learner, (x, y), epochs=40, batch_size=100, progress=False)
    p = run.predict(torch.tensor([[-1.0], [0.0], [1.0]]), how)
    close(p.mean.log(), torch.tensor([[0.0], [1.0], [2.0]]), 0.2)
    drawn = p.sample(4000)
    z_close(drawn, p.mean)
    z_close((drawn - p.mean).square(), p.variance)
    low, high = p.interval(0.9)
    assert torch.equal(low, low.round())
    assert (low < p.mean).all()
    assert (p.mean < high).all()
