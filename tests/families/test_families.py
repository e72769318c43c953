"""Each family keeps the contract, against torch.distributions or scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, distributions

from bayesrule import families as fam
from tests.contracts.exponential import ExponentialContract


def d(*values: object) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64)


Refused = tuple[tuple[Tensor, ...], ...]
MEANS, OTHERS = d([[1.0, -0.5], [0.0, 2.0]]), d([[0.5, -0.2], [1.0, 1.0]])
SPREAD = d([[[2.0, 0.3], [0.3, 0.7]], [[1.0, -0.4], [-0.4, 0.9]]])
ONES = torch.ones(2, dtype=torch.float64)


class TestNormal(ExponentialContract):
    q = fam.Normal.make(d([1.0, -2.0]), d([0.5, 3.0]))
    p = fam.Normal.make(d([0.0, 0.0]), d([1.0, 1.0]))
    improper: Refused = (
        (ONES, ONES),
        (ONES, 0.0 * ONES),
    )

    def reference(self, x: Tensor) -> Tensor:
        return distributions.Normal(self.q.mean, self.q.variance.sqrt()).log_prob(x)


class TestDiagonalGaussian(ExponentialContract):
    q = fam.DiagonalGaussian.make(MEANS, MEANS.square() + 0.5)
    p = fam.DiagonalGaussian.make(OTHERS, torch.ones_like(MEANS))
    improper: Refused = ((MEANS, MEANS),)

    def reference(self, x: Tensor) -> Tensor:
        return distributions.Normal(self.q.mean, self.q.variance.sqrt()).log_prob(x).sum(-1)


class TestGaussian(ExponentialContract):
    q = fam.Gaussian.make(MEANS, SPREAD)
    p = fam.Gaussian.make(OTHERS, torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    improper: Refused = (
        (MEANS, SPREAD),
        (MEANS, -d([[[1.0, 2.0], [2.0, 1.0]]] * 2)),
    )

    def reference(self, x: Tensor) -> Tensor:
        return distributions.MultivariateNormal(MEANS, SPREAD).log_prob(x)


class TestBernoulli(ExponentialContract):
    q, p = fam.Bernoulli.make(d([0.2, 0.9])), fam.Bernoulli.make(d([0.5, 0.3]))
    improper: Refused = ()

    def reference(self, x: Tensor) -> Tensor:
        return distributions.Bernoulli(self.q.probs).log_prob(x)


class TestCategorical(ExponentialContract):
    q = fam.Categorical((d([[0.0, 1.0, 3.0], [2.0, 2.0, -1.0]]),))
    p = fam.Categorical.make(d([[0.2, 0.3, 0.5]] * 2))
    improper: Refused = ()
    shift_free = True

    def reference(self, x: Tensor) -> Tensor:
        return distributions.OneHotCategorical(self.q.probs).log_prob(x)


class TestBeta(ExponentialContract):
    q, p = fam.Beta.make(d([2.0, 0.7]), d([5.0, 1.1])), fam.Beta.make(d([1.0, 1.5]), d([1.0, 2.0]))
    improper: Refused = (
        (-ONES, ONES),
        (ONES, -2.0 * ONES),
    )

    def reference(self, x: Tensor) -> Tensor:
        return torch.from_numpy(stats.beta.logpdf(x, [2.0, 0.7], [5.0, 1.1]))


class TestGamma(ExponentialContract):
    q = fam.Gamma.make(d([0.5, 40.0]), d([2.0, 3.0]))
    p = fam.Gamma.make(d([1.0, 30.0]), d([1.0, 3.0]))
    improper: Refused = (
        (-ONES, -ONES),
        (ONES, ONES),
    )

    def reference(self, x: Tensor) -> Tensor:
        return torch.from_numpy(stats.gamma.logpdf(x, [0.5, 40.0], scale=[0.5, 1 / 3]))


class TestDirichlet(ExponentialContract):
    q = fam.Dirichlet.make(d([[0.5, 2.0, 9.0], [1.0, 1.0, 3.0]]))
    p = fam.Dirichlet.make(d([[1.0, 1.0, 1.0], [2.0, 3.0, 4.0]]))
    improper: Refused = ((-torch.ones(2, 3, dtype=torch.float64),),)

    def reference(self, x: Tensor) -> Tensor:
        return distributions.Dirichlet(self.q.concentration).log_prob(x)


class TestNormalWishart(ExponentialContract):
    q = fam.NormalWishart.make(MEANS, d([2.0, 5.0]), SPREAD, d([4.0, 9.0]))
    p = fam.NormalWishart.make(OTHERS, d([1.0, 4.0]), 1.5 * SPREAD, d([3.0, 7.0]))
    improper: Refused = (
        (q.natural[0], -q.natural[1], *q.natural[2:]),
        (*q.natural[:2], -q.natural[2], q.natural[3]),
        (*q.natural[:3], -1.0 - q.natural[3]),
    )

    def reference(self, x: Tensor) -> Tensor:
        found = np.zeros(x.shape[:2])
        for i, rows in enumerate(x.numpy()):
            for b, row in enumerate(rows):
                precision, m = row[:, :2], row[:, 2]
                w = np.linalg.inv(SPREAD[b].numpy())
                spread = np.linalg.inv(float(self.q.count[b]) * precision)
                found[i, b] = stats.wishart.logpdf(precision, float(self.q.degrees[b]), w)
                found[i, b] += stats.multivariate_normal.logpdf(m, MEANS[b], spread)
        return torch.from_numpy(found)


def test_divergences_are_those_of_torch() -> None:
    for q, p, of in (
        (TestGamma.q, TestGamma.p, lambda f: distributions.Gamma(f.shape, f.rate)),
        (TestDirichlet.q, TestDirichlet.p, lambda f: distributions.Dirichlet(f.concentration)),
        (TestGaussian.q, TestGaussian.p,
         lambda f: distributions.MultivariateNormal(f.mean, f.covariance)),
    ):  # fmt: skip
        torch.testing.assert_close(q.kl(p), distributions.kl_divergence(of(q), of(p)))
        torch.testing.assert_close(q.entropy, of(q).entropy())


@pytest.mark.parametrize("shape", [1e-3, 1e6])
def test_extreme_shapes_come_back(shape: float) -> None:
    q = fam.Gamma.make(d([shape]), d([2.0]))
    # log a − ψ(a) of a = 1e6 has ten digits in float64, and so has what comes back.
    torch.testing.assert_close(
        fam.Gamma.from_expectation(q.expectation).shape, q.shape, rtol=1e-5, atol=0
    )


def test_impossible_expectations_are_refused() -> None:
    with pytest.raises(fam.ImproperError, match="Bernoulli"):
        fam.Bernoulli.make([0.0, 0.5])
    with pytest.raises(fam.ImproperError, match="Categorical"):
        fam.Categorical.make([0.5, 0.6])
    first, square, precision, log_det = TestNormalWishart.q.expectation
    with pytest.raises(fam.ImproperError, match="NormalWishart"):
        fam.NormalWishart.from_expectation((first, square, precision, log_det + 10.0))


class TestMixture:
    q = fam.Mixture(fam.Categorical.make(d([0.3, 0.7])), fam.Gaussian.make(MEANS, SPREAD))

    def test_density_is_that_of_torch(self) -> None:
        x = self.q.sample(100, torch.Generator().manual_seed(1))
        theirs = distributions.MixtureSameFamily(
            distributions.Categorical(d([0.3, 0.7])),
            distributions.MultivariateNormal(MEANS, SPREAD),
        )
        torch.testing.assert_close(self.q.log_prob(x), theirs.log_prob(x))

    def test_draws_have_the_mean_and_divergence_is_positive(self) -> None:
        generator = torch.Generator().manual_seed(2)
        x = self.q.sample(40_000, generator)
        mean = 0.3 * MEANS[0] + 0.7 * MEANS[1]
        assert (x.mean(0) - mean).abs().max() < 0.03
        assert self.q.kl(self.q, generator) == 0
        same = fam.Mixture(
            fam.Categorical.make(d([0.3, 0.7])), fam.Gaussian.make(MEANS, 2 * SPREAD)
        )
        assert self.q.kl(same, generator) > 0.05

    def test_one_component_has_that_entropy(self) -> None:
        one = fam.Mixture(fam.Categorical.make(d([1.0])), fam.Gaussian.make(MEANS[:1], SPREAD[:1]))
        found = one.entropy(torch.Generator().manual_seed(0), 20_000)
        assert abs(float(found - one.components.entropy[0])) < 0.03

    def test_numbers_of_components_must_agree(self) -> None:
        with pytest.raises(ValueError, match="batch of 3"):
            fam.Mixture(fam.Categorical.make(d([0.2, 0.3, 0.5])), self.q.components)
