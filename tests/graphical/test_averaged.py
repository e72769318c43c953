"""Expectations over Gaussian outputs against closed forms and adaptive quadrature."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from exact import DTYPE, close, randn
from scipy.integrate import quad
from scipy.special import expit, log_expit
from scipy.stats import norm

import bayesrule as br
from bayesrule.graphical._averaged import averaged, best_constant
from bayesrule.graphical._sites import Marginals, messages

STDS = (0.01, 0.5, 2.0, 10.0, 30.0)
MEAN = 0.7


def exact(function: object, std: float) -> float:
    """`E g(f)`, f ~ N(0.7, std²)."""

    def weighted(f: float) -> float:
        return float(function(f) * norm.pdf(f, MEAN, std))  # type: ignore[operator]

    edges = sorted({MEAN - 9.0 * std, -30.0, 0.0, 30.0, MEAN + 9.0 * std})
    inside = [e for e in edges if abs(e - MEAN) <= 9.0 * std]
    return sum(quad(weighted, *pair, epsabs=1e-13, limit=500)[0] for pair in pairwise(inside))


@pytest.mark.parametrize("std", STDS)
def test_messages_of_answers_are_exact_for_narrow_and_wide_beliefs(std: float) -> None:
    q = Marginals(*(torch.tensor([v], dtype=DTYPE) for v in (MEAN, std**2, 0.0)))
    one = torch.ones(1, dtype=DTYPE)
    value, (first, second) = messages(br.BernoulliLikelihood(), q, one)
    assert float(value) == pytest.approx(exact(log_expit, std), abs=2e-7)
    alpha = exact(lambda f: 1.0 - expit(f), std)
    v = -0.5 * exact(lambda f: expit(f) * expit(-f), std)
    assert float(second) == pytest.approx(v, abs=2e-7)
    assert float(first) == pytest.approx(alpha - 2.0 * v * MEAN, abs=2e-7)


def test_messages_of_counts_are_those_of_the_log_normal() -> None:
    mean, variance = randn(5), randn(5, seed=1).square() + 0.1
    y = torch.tensor([0.0, 1.0, 2.0, 5.0, 9.0], dtype=DTYPE)
    rate = torch.exp(mean + 0.5 * variance)
    total, (first, second) = messages(
        br.PoissonLikelihood(), Marginals(mean, variance, variance), y
    )
    close(total, (y * mean - rate - torch.lgamma(y + 1.0)).sum(), 1e-9)
    close(second, -0.5 * rate, 1e-9)
    close(first, y - rate + rate * mean, 1e-9)


@pytest.mark.parametrize("std", STDS)
def test_probabilities_are_exact(std: float) -> None:
    variance = torch.tensor([std**2], dtype=DTYPE)
    p = averaged(br.BernoulliLikelihood(), torch.tensor([MEAN], dtype=DTYPE), variance)
    yes = exact(expit, std)
    assert float(p.mean) == pytest.approx(yes, abs=2e-7)
    assert float(p.epistemic) == pytest.approx(
        exact(lambda f: expit(f) ** 2, std) - yes**2, abs=2e-7
    )
    assert float(p.log_prob(torch.ones(1))) == pytest.approx(math.log(yes), abs=2e-7)
    inside = exact(lambda f: -expit(f) * log_expit(f) - expit(-f) * log_expit(-f), std)
    wanted = -yes * math.log(yes) - (1.0 - yes) * math.log(1.0 - yes) - inside
    assert float(p.mutual_information) == pytest.approx(wanted, abs=1e-6)


def test_the_best_constant_is_the_one_that_explains_targets_best() -> None:
    y = randn(20) * 1e3 + 1e5
    assert best_constant(br.GaussianLikelihood(noise=1.0), y) == pytest.approx(float(y.mean()))
    counts = torch.tensor([900.0, 1100.0, 1000.0], dtype=DTYPE)
    assert best_constant(br.PoissonLikelihood(), counts) == pytest.approx(math.log(1000.0), 1e-4)
    answers = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=DTYPE).repeat(100)
    assert best_constant(br.BernoulliLikelihood(), answers) == pytest.approx(math.log(3.0), 1e-3)


def test_one_answer_is_no_certainty() -> None:
    one = torch.ones(1, dtype=DTYPE)
    c = best_constant(br.BernoulliLikelihood(), one)
    assert 1.0 / (1.0 + math.exp(c)) == pytest.approx(0.01 * c)
    assert 0.9 < torch.tensor(c).sigmoid() < 0.98
    assert best_constant(br.PoissonLikelihood(), 0.0 * one) > -4.0
