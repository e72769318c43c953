"""Linear regression against closed forms, the Gaussian density and scikit-learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, randn
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge

from bayesrule.families import Gaussian
from bayesrule.graphical import LinearRegression, Model, NotFittedError

ROWS, COLUMNS = 30, 4
X = randn(ROWS, COLUMNS) @ randn(COLUMNS, COLUMNS, seed=3) + 2.0
W = torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=DTYPE)
Y = X @ W + 3.0 + 0.4 * randn(ROWS, seed=1)


def fitted(**options: Any) -> LinearRegression:
    return LinearRegression(**{"prior_precision": 0.7, "noise": 0.5, **options}).fit(X, Y)


def test_the_posterior_is_that_of_bayes() -> None:
    model = fitted(intercept=False)
    precision = 0.7 * torch.eye(COLUMNS, dtype=DTYPE) + 4.0 * X.T @ X
    close(model.belief_.precision, precision)
    close(model.weights_, torch.linalg.solve(precision, 4.0 * X.T @ Y))
    assert model.report_ is not None
    assert model.report_.passes == 1
    assert model.report_.converged


def test_it_is_one_step_of_the_learning_rule_from_any_belief() -> None:
    """`λ ← λ − ρ ∇_μ (E[ℓ̄] − H)` with ρ = 1; with ρ < 1 the rest shrinks by 1 − ρ a step."""
    wanted = fitted(intercept=False).belief_
    start = Gaussian.make(randn(COLUMNS, seed=5), torch.eye(COLUMNS, dtype=DTYPE) * 3.0)

    def stepped(q: Gaussian, rate: float) -> Gaussian:
        first, second = (part.detach().requires_grad_() for part in q.expectation)
        fit = -0.5 * 4.0 * ((Y**2).sum() - 2.0 * Y @ X @ first + ((X.T @ X) * second).sum())
        total = fit - 0.5 * 0.7 * second.trace()
        towards = torch.autograd.grad(total, (first, second))
        mixed = [(1.0 - rate) * a + rate * b for a, b in zip(q.natural, towards, strict=True)]
        return Gaussian((mixed[0], 0.5 * (mixed[1] + mixed[1].T)))

    for ours, other in zip(stepped(start, 1.0).natural, wanted.natural, strict=True):
        close(ours, other, 1e-10)
    q = start
    for _ in range(5):
        q = stepped(q, 0.3)
    for now, first, last in zip(q.natural, start.natural, wanted.natural, strict=True):
        close(now - last, 0.7**5 * (first - last), 1e-9)


def test_evidence_is_the_density_of_all_targets() -> None:
    model = fitted(intercept=False)
    cover = (X @ X.T / 0.7 + 0.25 * torch.eye(ROWS, dtype=DTYPE)).numpy()
    exact = multivariate_normal(np.zeros(ROWS), cover).logpdf(Y.numpy())
    assert model.log_evidence == pytest.approx(exact, abs=1e-10)


def test_evidence_with_an_intercept_is_the_limit_of_a_wide_prior() -> None:
    width = 3e3
    cover = X @ X.T / 0.7 + 0.25 * torch.eye(ROWS, dtype=DTYPE) + width**2
    exact = multivariate_normal(np.zeros(ROWS), cover.numpy()).logpdf(Y.numpy())
    # The flat prior has the density 1 in place of 1 / (√2π width).
    limit = exact + math.log(width) + 0.5 * math.log(2.0 * math.pi)
    assert fitted().log_evidence == pytest.approx(limit, abs=1e-4)


def test_evidence_is_a_ratio_of_log_partitions() -> None:
    model = fitted()
    prior = 0.5 * COLUMNS * (math.log(2.0 * math.pi) - math.log(0.7))
    shifted = Y - Y.mean()
    constant = 0.5 * ROWS * math.log(4.0 / (2.0 * math.pi)) - 2.0 * float(shifted @ shifted)
    whole = float(model.belief_.log_partition) - prior + constant
    assert model.log_evidence == pytest.approx(whole, abs=1e-10)


def test_an_intercept_is_one_more_column_with_a_flat_prior() -> None:
    wide = torch.cat([X, torch.ones(ROWS, 1, dtype=DTYPE)], dim=1)
    prior = torch.diag(torch.tensor([0.7] * COLUMNS + [0.0], dtype=DTYPE))
    precision = prior + 4.0 * wide.T @ wide
    exact = torch.linalg.solve(precision, 4.0 * wide.T @ Y)
    model = fitted()
    close(model.weights_, exact[:-1])
    assert model.intercept_ == pytest.approx(float(exact[-1]), abs=1e-9)
    new = randn(6, COLUMNS, seed=8)
    design = torch.cat([new, torch.ones(6, 1, dtype=DTYPE)], dim=1)
    p = model.predict(new)
    close(p.mean, design @ exact)
    close(p.epistemic, ((design @ torch.linalg.inv(precision)) * design).sum(1))
    close(p.aleatoric, torch.full((6,), 0.25, dtype=DTYPE))


def test_prior_and_noise_are_those_of_scikit_learn() -> None:
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    theirs = BayesianRidge(fit_intercept=False, tol=1e-13, max_iter=3000, **flat)
    theirs.fit(X.numpy(), Y.numpy())
    ours = LinearRegression(intercept=False).fit(X, Y)
    assert ours.prior_precision_ == pytest.approx(theirs.lambda_, rel=1e-6)
    assert ours.noise_ == pytest.approx(theirs.alpha_**-0.5, rel=1e-6)
    np.testing.assert_allclose(ours.weights_.numpy(), theirs.coef_, rtol=1e-6)
    mean, std = theirs.predict(X.numpy(), return_std=True)
    p = ours.predict(X)
    np.testing.assert_allclose(p.mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(p.std.numpy(), std, rtol=1e-6)
    assert ours.report_ is not None
    assert ours.report_.converged


def test_prior_and_noise_have_the_largest_evidence() -> None:
    best = LinearRegression().fit(X, Y)
    for factor in (0.97, 1.03):
        for part in ("prior_precision", "noise"):
            given = {"prior_precision": best.prior_precision_, "noise": best.noise_}
            given[part] *= factor
            assert LinearRegression(**given).fit(X, Y).log_evidence < best.log_evidence
    half = LinearRegression(noise=0.5).fit(X, Y)
    assert half.noise_ == pytest.approx(0.5)
    assert half.prior_precision_ != 1.0


def test_batches_add_up() -> None:
    whole = LinearRegression().fit(X, Y)
    parts = LinearRegression()
    for rows in (slice(0, 5), slice(5, 17), slice(17, 30)):
        parts.update(X[rows], Y[rows])
    close(parts.weights_, whole.weights_, 1e-7)
    assert parts.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    assert parts.intercept_ == pytest.approx(whole.intercept_, abs=1e-7)


def test_far_away_rows_lose_no_digits() -> None:
    far = LinearRegression(prior_precision=0.7, noise=0.5).fit(X + 1e6, Y - 1e6)
    close(far.weights_, fitted().weights_, 1e-7)
    close(far.predict(X + 1e6).std, fitted().predict(X).std, 1e-7)


def test_draws_have_the_stated_moments() -> None:
    model = fitted()
    draws, p = model.sample(X, num=20_000), model.predict(X)
    assert draws.shape == (20_000, ROWS)
    assert ((draws.mean(0) - p.mean).abs() < 5.0 * (p.epistemic / 20_000).sqrt()).all()
    torch.testing.assert_close(draws.var(0), p.epistemic, rtol=0.06, atol=0.0)
    torch.testing.assert_close(model.sample(X, 3, seed=1), model.sample(X, 3, seed=1))


def test_intervals_hold_and_the_score_is_a_mean_log_density() -> None:
    p = fitted().predict(X)
    low, high = p.interval(0.9)
    assert 0.7 < float(((low < Y) & (high > Y)).double().mean()) <= 1.0
    assert fitted().score(X, Y) == pytest.approx(float(p.log_prob(Y).mean()))


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, lambda x: x.float(), np.ndarray.tolist])
def test_arrays_frames_and_tensors_go_in(kind: Any) -> None:
    x = kind(X) if kind is not np.ndarray.tolist else X.tolist()
    model = LinearRegression(prior_precision=0.7, noise=0.5).fit(x, Y.numpy())
    close(model.weights_, fitted().weights_, 1e-4)


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    model = LinearRegression().fit(X, Y)
    model.save(tmp_path / "line.safetensors")
    again = Model.load(tmp_path / "line.safetensors")
    assert isinstance(again, LinearRegression)
    close(again.predict(X).std, model.predict(X).std, 1e-14)
    assert repr(again) == repr(model)
    close(again.update(X, Y).weights_, model.update(X, Y).weights_, 1e-14)


def test_it_says_what_it_came_to() -> None:
    shown = repr(LinearRegression().fit(X, Y))
    assert "converged after" in shown
    assert "30 rows; prior_precision" in shown
    assert len(shown.splitlines()) <= 6
    stopped = LinearRegression(passes=2).fit(X, Y).report_
    assert stopped is not None
    assert not stopped.converged
    assert stopped.why == "prior and noise still move after 2 passes"


@pytest.mark.parametrize("name", ["prior_precision", "noise"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_not_positive_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"LinearRegression: {name} must be positive"):
        LinearRegression(**{name: value})


def test_bad_tables_are_refused() -> None:
    bad = X.clone()
    bad[3, 2] = torch.nan
    with pytest.raises(ValueError, match="x is not finite at row 3, column 2: nan"):
        LinearRegression().fit(bad, Y)
    with pytest.raises(ValueError, match="y has one number for each of 30 rows"):
        LinearRegression().fit(X, Y[:4])
    with pytest.raises(ValueError, match="x has 3 columns; the model was fitted to 4"):
        fitted().predict(X[:, :3])
    with pytest.raises(ValueError, match="one row says nothing about the noise"):
        LinearRegression().fit(X[:1], Y[:1])
    with pytest.raises(NotFittedError, match="LinearRegression has seen no data"):
        LinearRegression().predict(X)


def test_targets_without_noise_do_not_break_it() -> None:
    model = LinearRegression().fit(X, X @ W)
    close(model.weights_, W, 1e-5)
    flat = LinearRegression().fit(X, torch.full((ROWS,), 2.0))
    close(flat.predict(X).mean, torch.full((ROWS,), 2.0, dtype=DTYPE), 1e-6)
    same = LinearRegression().fit(torch.ones(ROWS, 1), Y)
    close(same.predict(torch.ones(1, 1)).mean, Y.mean()[None], 1e-9)
