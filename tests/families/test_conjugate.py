"""Conjugate Bayes is a sum of natural parameters: posteriors and evidence are those of scipy.

Khan & Rue (2023), sec. 5.1: with ρ = 1 one step of the rule is `λ = λ₀ + Σ λ̃_i`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from bayesrule import families as fam
from bayesrule.families import ExponentialFamily, Natural

YES = np.array([1, 0, 1, 1, 0, 1, 1])
COUNTS = np.array([3, 0, 5, 2, 2])
SYMBOLS = np.array([2, 0, 2, 2, 1, 0])
ROWS = np.random.default_rng(3).normal((1.0, -2.0), size=(6, 2))
SCATTER = np.array([[2.0, 0.3], [0.3, 0.7]])


@dataclass(frozen=True)
class Case:
    """A prior, the messages of rows (n, *), the constant of their densities; scipy's answers."""

    prior: ExponentialFamily
    messages: Natural
    constant: float
    posterior: object
    evidence: float


def d(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=float))


def yes_or_no() -> Case:
    k, n = int(YES.sum()), len(YES)
    evidence = stats.betabinom(n, 2.0, 3.5).logpmf(k) - math.log(special.comb(n, k))
    prior = fam.Beta.make(d([2.0]), d([3.5]))
    posterior = stats.beta(2.0 + k, 3.5 + n - k)
    return Case(prior, (d(YES)[:, None], d(1 - YES)[:, None]), 0.0, posterior, float(evidence))


def counts() -> Case:
    a, b, total, n = 1.5, 0.8, int(COUNTS.sum()), len(COUNTS)
    # The sum of n counts is negative binomial, and says all that the counts say of the rate.
    sums = stats.nbinom(a, b / (b + n)).logpmf(total)
    split = stats.multinomial(total, np.full(n, 1.0 / n)).logpmf(COUNTS)
    constant = -float(special.gammaln(COUNTS + 1.0).sum())
    messages = d(COUNTS)[:, None], -torch.ones(n, 1, dtype=torch.float64)
    prior, posterior = fam.Gamma.make(d([a]), d([b])), stats.gamma(a + total, scale=1 / (b + n))
    return Case(prior, messages, constant, posterior, float(sums + split))


def symbols() -> Case:
    alpha, hot = np.array([0.5, 2.0, 1.5]), np.eye(3)[SYMBOLS]
    found = hot.sum(0)
    ways = special.gammaln(len(hot) + 1.0) - special.gammaln(found + 1.0).sum()
    evidence = stats.dirichlet_multinomial(alpha, len(hot)).logpmf(found) - ways
    prior = fam.Dirichlet.make(d([alpha]))
    posterior = stats.dirichlet(alpha + found)
    return Case(prior, (d(hot)[:, None],), 0.0, posterior, float(evidence))


CASES = {"Beta-Bernoulli": yes_or_no, "Gamma-Poisson": counts, "Dirichlet": symbols}


def updated(case: Case) -> ExponentialFamily:
    """`λ₀ + Σ λ̃_i`."""
    told = (part.sum(0) for part in case.messages)
    return type(case.prior)(tuple(a + b for a, b in zip(case.prior.natural, told, strict=True)))


@pytest.mark.parametrize("name", CASES)
def test_the_posterior_is_that_of_scipy(name: str) -> None:
    case = CASES[name]()
    q = updated(case)
    x = q.sample(20, torch.Generator().manual_seed(0))[:, 0]
    points = x.numpy().T if name == "Dirichlet" else x.numpy()
    wanted = case.posterior.logpdf(points)  # type: ignore[attr-defined]
    torch.testing.assert_close(q.log_prob(x[:, None])[:, 0], d(wanted), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_evidence_is_a_difference_of_log_partitions(name: str) -> None:
    case = CASES[name]()
    found = updated(case).log_partition - case.prior.log_partition + case.constant
    assert float(found) == pytest.approx(case.evidence, rel=1e-10)


def normal_wishart() -> tuple[fam.NormalWishart, Natural]:
    """A prior, and what each row says: `(x, −1/2, −x xᵀ/2, 1/2)`."""
    prior = fam.NormalWishart.make(d([[0.5, -1.0]]), d([1.7]), d([SCATTER]), d([4.0]))
    x = d(ROWS)
    half = torch.full((len(x), 1), 0.5, dtype=torch.float64)
    outer = -0.5 * x[:, :, None] * x[:, None, :]
    return prior, (x[:, None], -half, outer[:, None], half)


def test_each_row_is_as_probable_as_the_students_t_of_scipy() -> None:
    """Mean and covariance unknown: the evidence of the rows, one by one."""
    q, messages = normal_wishart()
    for i, row in enumerate(ROWS):
        told = (part[i] for part in messages)
        after = fam.NormalWishart(tuple(a + b for a, b in zip(q.natural, told, strict=True)))
        found = after.log_partition - q.log_partition - math.log(2.0 * math.pi)
        count, degrees = float(q.count), float(q.degrees) - 1.0
        shape = q.scatter[0].numpy() * (count + 1.0) / (count * degrees)
        truth = stats.multivariate_t(q.mean[0].numpy(), shape, degrees).logpdf(row)
        assert float(found) == pytest.approx(float(truth), rel=1e-10)
        q = after


def test_means_and_precisions_are_those_of_scipy() -> None:
    """The posterior's inverse Wishart and normal, by the textbook's update."""
    prior, messages = normal_wishart()
    told = (part.sum(0) for part in messages)
    q = fam.NormalWishart(tuple(a + b for a, b in zip(prior.natural, told, strict=True)))
    n, first, count = len(ROWS), np.array([0.5, -1.0]), 1.7
    middle = ROWS.mean(0)
    mean = (count * first + n * middle) / (count + n)
    gap = (middle - first)[:, None]
    scatter = SCATTER + (n - 1) * np.cov(ROWS.T) + count * n / (count + n) * gap @ gap.T
    x = q.sample(5, torch.Generator().manual_seed(1))
    for point, found in zip(x[:, 0].numpy(), q.log_prob(x)[:, 0].tolist(), strict=True):
        precision, m = point[:, :2], point[:, 2]
        wanted = stats.wishart(4.0 + n, np.linalg.inv(scatter)).logpdf(precision)
        normal = stats.multivariate_normal(mean, np.linalg.inv((count + n) * precision))
        assert found == pytest.approx(float(wanted + normal.logpdf(m)), rel=1e-9)
