"""Logistic regression against the largest bound by brute force, and the exact posterior."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import bayesrule as br
from bayesrule.graphical import LogisticRegression, Model
from graphical.variational import best

ROWS = 25
X = randn(ROWS, 1)
Y = torch.bernoulli((1.5 * X[:, 0] - 0.5).sigmoid(), generator=generator(4))
DESIGN = torch.cat([X, torch.ones(ROWS, 1, dtype=DTYPE)], dim=1)
PRIOR = torch.diag(torch.tensor([1.0 / 0.8, 100.0], dtype=DTYPE))


def log_prob(outputs: Tensor) -> Tensor:
    return -loss(outputs, Y.expand_as(outputs), reduction="none")


def fitted(**options: Any) -> LogisticRegression:
    return LogisticRegression(**{"prior_precision": 0.8, **options}).fit(X, Y)


def grid() -> tuple[Tensor, Tensor, float]:
    """Points (w, b), their posterior probabilities, and the log evidence, all by summation."""
    axes = torch.linspace(-9.0, 9.0, 601, dtype=DTYPE), torch.linspace(-9.0, 9.0, 601, dtype=DTYPE)
    points = torch.cartesian_prod(*axes)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=DTYPE), PRIOR)
    joint = log_prob(points @ DESIGN.T).sum(1) + prior.log_prob(points)
    evidence = joint.logsumexp(0) + 2.0 * math.log(18.0 / 600)
    return points, joint.softmax(0), float(evidence)


def test_the_belief_is_the_gaussian_of_the_largest_bound() -> None:
    mean, cover, bound = best(DESIGN, PRIOR, log_prob)
    model = fitted()
    close(model.belief_.mean, mean, 1e-5)
    close(model.belief_.covariance, cover, 1e-5)
    assert model.log_evidence == pytest.approx(bound, abs=1e-7)


def test_it_is_a_fixed_point_of_the_rule() -> None:
    """`λ = λ₀ + Σ λ̃`: the stationarity conditions of variational inference, eqs 25 and 26."""
    q = fitted().belief_
    mean = q.mean
    points = torch.tensor(np.polynomial.hermite_e.hermegauss(64)[0], dtype=DTYPE)
    weights = torch.tensor(np.polynomial.hermite_e.hermegauss(64)[1], dtype=DTYPE)
    centre, std = DESIGN @ mean, ((DESIGN @ q.covariance) * DESIGN).sum(1).sqrt()
    p = (centre + std * points[:, None]).sigmoid()
    average = weights / weights.sum()
    slope = DESIGN.T @ (Y - average @ p) - torch.linalg.solve(PRIOR, mean)
    assert float(slope.abs().max()) < 1e-6
    hessian = (DESIGN.T * (average @ (p * (1.0 - p)))) @ DESIGN + torch.linalg.inv(PRIOR)
    close(q.precision, hessian, 1e-6)


def test_the_bound_is_below_the_evidence_by_little() -> None:
    points, probs, evidence = grid()
    model = fitted()
    assert 0.0 < evidence - model.log_evidence < 0.1
    exact = probs @ points
    std = (probs @ (points - exact).square()).sqrt()
    assert ((model.belief_.mean - exact).abs() < 0.15 * std).all()


def test_probabilities_are_averages_over_the_belief() -> None:
    model = fitted()
    new = torch.linspace(-3.0, 3.0, 5, dtype=DTYPE)[:, None]
    p, draws = model.predict(new), model.sample(new, num=40_000)
    error = draws.std(0) / 200.0
    assert ((draws.mean(0) - p.mean).abs() < 5.0 * error).all()
    torch.testing.assert_close(draws.var(0), p.epistemic, rtol=0.05, atol=0.0)
    close(p.epistemic + p.aleatoric, p.mean * (1.0 - p.mean), 1e-12)
    points, probs, _ = grid()
    design = torch.cat([new, torch.ones(5, 1, dtype=DTYPE)], dim=1)
    torch.testing.assert_close(p.mean, probs @ (points @ design.T).sigmoid(), rtol=0.0, atol=0.02)
    assert p.labels.tolist() == [0, 0, 0, 1, 1]
    entropies = torch.special.entr(draws).mean(0) + torch.special.entr(1.0 - draws).mean(0)
    torch.testing.assert_close(p.entropy - p.mutual_information, entropies, rtol=0.0, atol=0.01)


def test_probabilities_are_those_of_the_no_u_turn_sampler() -> None:
    """Three weights and 60 rows: the exact posterior, by draws of it."""
    pytest.importorskip("nutpie", reason="needs bayesrule[hmc]")
    x = randn(60, 3, seed=6)
    y = torch.bernoulli(
        (x @ torch.tensor([1.5, -1.0, 0.0]).double()).sigmoid(), generator=generator(7)
    )
    options: dict[str, Any] = {
        "chains": 2,
        "draws": 500,
        "warmup": 200,
        "progress": False,
        "compile": False,
    }
    samples = br.hmc(
        nn.Linear(3, 1, bias=False), br.BernoulliLikelihood(), (x, y[:, None]),
        prior_precision=0.8, **options,
    )  # fmt: skip
    model = LogisticRegression(prior_precision=0.8, intercept=False).fit(x, y)
    draws, new = samples.draws["weight"].flatten(1), randn(50, 3, seed=8)
    q = model.belief_
    # The best Gaussian is near the posterior, not equal to it: it is a little narrower.
    assert ((q.mean - draws.mean(0)).abs() < 0.15 * draws.std(0)).all()
    torch.testing.assert_close(q.covariance.diagonal().sqrt(), draws.std(0), rtol=0.1, atol=0.0)
    probs = (new @ draws.T).sigmoid().mean(1)
    torch.testing.assert_close(model.predict(new).mean, probs, rtol=0.0, atol=0.02)


def test_every_pass_raises_the_bound_and_shorter_steps_end_in_the_same_place() -> None:
    whole, short = fitted(), fitted(rate=0.3)
    for model in (whole, short):
        assert model.report_ is not None
        assert model.report_.converged
        assert (np.diff(model.report_.objective) > -1e-10).all()
    close(short.belief_.mean, whole.belief_.mean, 1e-6)
    assert short.report_ is not None
    assert whole.report_ is not None
    assert short.report_.passes > whole.report_.passes


def test_a_prior_that_is_not_given_has_the_largest_bound() -> None:
    model = LogisticRegression().fit(X, Y)
    for factor in (0.9, 1.1):
        other = fitted(prior_precision=factor * model.prior_precision_)
        assert other.log_evidence < model.log_evidence
    weights = model.belief_.mean[0] ** 2 + model.belief_.covariance[0, 0]
    assert model.prior_precision_ == pytest.approx(1.0 / float(weights), rel=1e-5)


def test_steps_of_the_whole_length_that_would_diverge_are_shortened() -> None:
    # Large inputs and a wide prior: the first message overshoots.
    x = 30.0 * randn(40, 3, seed=2)
    y = (x[:, 0] > 0).double()
    y[:4] = 1.0 - y[:4]
    model = LogisticRegression(prior_precision=1e-3).fit(x, y)
    assert model.report_ is not None
    assert (np.diff(model.report_.objective) > -1e-9).all()
    assert model.score(x, y) > math.log(0.5)


def test_answers_that_are_all_the_same_are_believed() -> None:
    model = LogisticRegression().fit(X, torch.ones(ROWS))
    assert (model.predict(X).mean > 0.9).all()


def test_frames_go_in_and_files_come_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"size": X[:, 0].numpy()})
    model = LogisticRegression(prior_precision=0.8).fit(frame, Y.numpy().astype(bool))
    close(model.weights_, fitted().weights_, 1e-12)
    model.save(tmp_path / "answers.safetensors")
    again = Model.load(tmp_path / "answers.safetensors")
    assert isinstance(again, LogisticRegression)
    close(again.predict(frame).mean, model.predict(frame).mean, 1e-14)
    assert repr(again) == repr(model)
    assert len(repr(model).splitlines()) <= 6


def test_a_fit_that_was_too_short_says_so() -> None:
    report = fitted(passes=1).report_
    assert report is not None
    assert not report.converged
    assert report.why == "stopped after 1 passes"


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="BernoulliLikelihood needs targets that are 0 or 1"):
        LogisticRegression().fit(X, Y + 1.0)
    with pytest.raises(ValueError, match="LogisticRegression: prior_precision must be positive"):
        LogisticRegression(prior_precision=-1.0)
    with pytest.raises(ValueError, match=r"rate ρ lies in \(0, 1\] .* got 2.0"):
        LogisticRegression(rate=2.0)
    bad = X.clone()
    bad[2] = torch.inf
    with pytest.raises(ValueError, match="x is not finite at row 2, column 0: inf"):
        fitted().predict(bad)
