"""Gaussian processes against scikit-learn, brute force, and each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, generator, randn
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process import kernels as theirs
from torch import Tensor

import bayesrule as br
from bayesrule.graphical import GP, Model, NotFittedError
from bayesrule.graphical.kernels import RBF, Kernel, Matern
from bayesrule.likelihoods import Likelihood
from graphical.variational import best

ROWS = 40
X = 2.0 * randn(ROWS, 2)
F = X[:, 0].sin() + 0.5 * X[:, 1]
Y = F + 0.2 * randn(ROWS, seed=1)
NEW = 2.0 * randn(12, 2, seed=2)
FEW = randn(6, 1, seed=3)
ANSWERS = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=DTYPE)
COUNTS = torch.tensor([3.0, 0.0, 1.0, 5.0, 2.0, 0.0], dtype=DTYPE)
BINARY, POISSON = br.BernoulliLikelihood(), br.PoissonLikelihood()


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (RBF(1.5, [0.9, 2.0]), 1.5 * theirs.RBF([0.9, 2.0])),
        (Matern(0.8, 1.3, 1.5), 0.8 * theirs.Matern(1.3, nu=1.5)),
        (RBF() + Matern(), theirs.RBF() + theirs.Matern(nu=2.5)),
    ],
)
def test_regression_is_that_of_scikit_learn(ours: Kernel, other: Any) -> None:
    model = GP(kernel=ours, noise=0.3, mean=0.0, learn=False).fit(X, Y)
    reference = GaussianProcessRegressor(other, alpha=0.09, optimizer=None)
    reference.fit(X.numpy(), Y.numpy())
    wanted = reference.log_marginal_likelihood_value_
    assert model.log_evidence == pytest.approx(wanted, abs=1e-8)
    mean, cover = reference.predict(NEW.numpy(), return_cov=True)
    p = model.predict(NEW)
    close(p.mean, torch.as_tensor(mean), 1e-8)
    close(p.epistemic, torch.as_tensor(cover.diagonal().copy()), 1e-8)
    close(p.aleatoric, torch.full((12,), 0.09, dtype=DTYPE), 1e-12)
    draws = model.sample(NEW, num=40_000)
    cover_of_draws = np.cov(draws.numpy().T)
    np.testing.assert_allclose(cover_of_draws, cover, atol=0.03)


def test_parameters_have_the_evidence_of_scikit_learn() -> None:
    kernel = theirs.ConstantKernel(1.0) * theirs.RBF([1.0, 1.0]) + theirs.WhiteKernel(0.1)
    reference = GaussianProcessRegressor(kernel).fit(X.numpy(), (Y - Y.mean()).numpy())
    model = GP().fit(X, Y)
    assert model.report_ is not None
    assert model.report_.converged
    assert model.mean_ == pytest.approx(float(Y.mean()), abs=1e-9)
    assert model.log_evidence == pytest.approx(reference.log_marginal_likelihood_value_, abs=1e-4)
    found = np.exp(reference.kernel_.theta)
    ours = [*model.kernel_.parameters["length"].tolist(), model.noise_**2]
    np.testing.assert_allclose(ours, found[1:], rtol=0.01)


def test_noise_that_is_not_given_is_learned_even_where_the_kernel_is_not() -> None:
    model = GP(kernel=RBF(), learn=False).fit(X, Y)
    assert repr(model.kernel_) == repr(RBF())
    for factor in (0.95, 1.05):
        other = GP(kernel=RBF(), learn=False, noise=factor * model.noise_).fit(X, Y)
        assert other.log_evidence < model.log_evidence


def test_one_step_of_conjugate_computation_is_exact_for_gaussian_targets() -> None:
    exact = GP(kernel=RBF(), noise=0.3, mean=0.5, learn=False).fit(X, Y)
    options = {"kernel": RBF(), "mean": 0.5, "learn": False}
    model = GP(likelihood=br.GaussianLikelihood(noise=0.3), **options).fit(X, Y)
    assert model.report_ is not None
    # The prior, the step, and a second one that finds nothing left to do.
    assert model.report_.passes == 3
    assert model.report_.objective[1] == pytest.approx(exact.log_evidence, abs=1e-9)
    assert model.log_evidence == pytest.approx(exact.log_evidence, abs=1e-9)
    for ours, wanted in zip(model.sites_, exact.sites_, strict=True):
        close(ours, wanted, 1e-9)
    close(model.predict(NEW).mean, exact.predict(NEW).mean, 1e-9)
    close(model.predict(NEW).std, exact.predict(NEW).std, 1e-9)


def test_shorter_steps_come_as_close_as_they_should() -> None:
    """With ρ < 1 the sites approach the exact ones as (1 − ρ)^t."""
    exact = GP(kernel=RBF(), noise=0.3, mean=0.0, learn=False).fit(X, Y).sites_
    with_rate = {"likelihood": br.GaussianLikelihood(noise=0.3), "rate": 0.5, "passes": 4}
    model = GP(kernel=RBF(), mean=0.0, learn=False, **with_rate).fit(X, Y)
    for ours, wanted in zip(model.sites_, exact, strict=True):
        close(ours, (1.0 - 0.5**4) * wanted, 1e-9)
    assert model.report_ is not None
    assert not model.report_.converged


@pytest.mark.parametrize(
    ("likelihood", "y"), [(BINARY, ANSWERS), (POISSON, COUNTS)], ids=["answers", "counts"]
)
def test_the_belief_is_the_gaussian_of_the_largest_bound(likelihood: Likelihood, y: Tensor) -> None:
    """Brute force over all means and covariances of f at six rows."""
    kernel = RBF(1.0, 0.8)
    model = GP(kernel=kernel, likelihood=likelihood, mean=0.0, learn=False, tol=1e-9).fit(FEW, y)

    def log_prob(outputs: Tensor) -> Tensor:
        flat = likelihood.log_prob(outputs.reshape(-1), y.expand_as(outputs).reshape(-1), {})
        return flat.reshape(outputs.shape)

    prior = kernel.covariance(FEW, FEW)
    eye = torch.eye(6, dtype=DTYPE)
    mean, cover, bound = best(eye, prior + 1e-10 * eye, log_prob)
    assert model.log_evidence == pytest.approx(bound, abs=1e-6)
    q = model._process.marginals()
    close(q.mean, mean, 2e-5)
    close(q.variance, cover.diagonal(), 2e-5)
    # Stationarity: V⁻¹ = K⁻¹ + W, with the sites' own precisions.
    precision = torch.linalg.inv(prior) - 2.0 * model.sites_[1].diag()
    close(torch.linalg.inv(precision), cover, 2e-5)


def test_the_bound_is_below_the_evidence_of_two_rows() -> None:
    x, y = FEW[:2], ANSWERS[:2]
    model = GP(kernel=RBF(2.0), likelihood=BINARY, mean=0.0, learn=False).fit(x, y)
    axis = torch.linspace(-12.0, 12.0, 801, dtype=DTYPE)
    points = torch.cartesian_prod(axis, axis)
    cover = RBF(2.0).covariance(x, x)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=DTYPE), cover)
    logs = (points * (2.0 * y - 1.0)).sigmoid().log().sum(1) + prior.log_prob(points)
    evidence = float(logs.logsumexp(0)) + 2.0 * math.log(24.0 / 800)
    assert 0.0 < evidence - model.log_evidence < 0.02
    # The probability of a yes at the first row, by summation.
    exact = float(logs.softmax(0) @ points[:, 0].sigmoid())
    assert float(model.predict(x).mean[0]) == pytest.approx(exact, abs=0.01)


def problem(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    x = 3.0 * randn(rows, 2, seed=seed)
    p = (2.5 * x[:, 0].sin() + x[:, 1]).sigmoid()
    return x, torch.bernoulli(p, generator=generator(seed))


@pytest.mark.parametrize("learn", [False, True])
def test_held_out_answers_are_as_probable_as_by_laplace(learn: bool) -> None:
    ours, laplace = [], []
    for seed in range(3):
        x, y = problem(80, seed)
        new, truth = problem(500, 100 + seed)
        kernel = 4.0 * theirs.RBF([1.5, 1.5])
        given: dict[str, Any] = {} if learn else {"optimizer": None}
        reference = GaussianProcessClassifier(kernel, **given).fit(x.numpy(), y.numpy())
        probs = torch.as_tensor(reference.predict_proba(new.numpy()))
        laplace.append(float(probs.gather(1, truth.long()[:, None]).log().mean()))
        model = GP(kernel=RBF(4.0, [1.5, 1.5]), likelihood=BINARY, mean=0.0, learn=learn)
        ours.append(model.fit(x, y).score(new, truth))
        assert model.report_ is not None
        assert model.report_.converged
    assert np.mean(ours) > np.mean(laplace)


def test_every_pass_raises_the_bound() -> None:
    x, y = problem(60, 0)
    counts = torch.poisson(torch.exp(2.0 + x[:, 0].sin()), generator=generator(1))
    for likelihood, targets in ((BINARY, y), (POISSON, counts)):
        report = GP(kernel=RBF(9.0), likelihood=likelihood, learn=False).fit(x, targets).report_
        assert report is not None
        assert report.converged
        assert (np.diff(report.objective) > -1e-9).all()


def test_parameters_of_the_kernel_have_the_largest_bound() -> None:
    x, y = problem(60, 0)
    model = GP(kernel=RBF(), likelihood=BINARY).fit(x, y)
    for name, value in model.kernel_.parameters.items():
        for factor in (0.8, 1.25):
            kernel = model.kernel_.replaced({**model.kernel_.parameters, name: factor * value})
            other = GP(kernel=kernel, likelihood=BINARY, learn=False).fit(x, y)
            assert other.log_evidence < model.log_evidence


def test_counts_are_predicted_by_whole_numbers() -> None:
    x = torch.linspace(0.0, 6.0, 30, dtype=DTYPE)[:, None]
    y = torch.poisson(torch.exp(1.0 + x[:, 0].sin()), generator=generator(0))
    model = GP(likelihood=POISSON).fit(x, y)
    p = model.predict(x)
    f = model._process.marginals()
    close(p.mean, torch.exp(f.mean + 0.5 * f.variance), 1e-8)
    close(p.aleatoric, p.mean, 1e-8)
    close(p.epistemic, p.mean.square() * f.variance.expm1(), 1e-8)
    low, high = p.interval(0.9)
    assert (low == low.round()).all()
    assert 0.8 < float(((low <= y) & (y <= high)).double().mean()) <= 1.0
    draws = p.sample(4000)
    assert draws.shape == (4000, 30)
    error = (p.variance / 4000).sqrt()
    assert ((draws.mean(0) - p.mean).abs() < 5.0 * error).all()
    # All counts together have the probability 1.
    many = torch.arange(200, dtype=DTYPE)[:, None].expand(200, 30)
    total = torch.stack([p.log_prob(row) for row in many]).exp().sum(0)
    close(total, torch.ones(30, dtype=DTYPE), 1e-6)
    close(p.cdf(y), torch.stack([p.log_prob(torch.clamp(y - k, min=0)).exp() * (y >= k)
                                 for k in range(int(y.max()) + 1)]).sum(0), 1e-6)  # fmt: skip


def test_uncertainty_grows_away_from_the_rows() -> None:
    model = GP(kernel=RBF(), noise=0.1).fit(X, Y)
    near, far = model.predict(X), model.predict(X + 100.0)
    assert (far.epistemic > 10.0 * near.epistemic).all()
    close(far.mean, torch.full((ROWS,), model.mean_, dtype=DTYPE), 1e-6)


def test_several_starts_are_at_least_as_good() -> None:
    bad = RBF(length=100.0)
    one, several = GP(kernel=bad).fit(X, Y), GP(kernel=bad, starts=4).fit(X, Y)
    assert several.log_evidence >= one.log_evidence - 1e-9


@pytest.mark.parametrize("likelihood", [None, BINARY])
def test_a_saved_model_is_the_same(tmp_path: Path, likelihood: Likelihood | None) -> None:
    y = Y if likelihood is None else (Y > 0).double()
    model = GP(kernel=RBF() + Matern(smoothness=0.5), likelihood=likelihood).fit(X, y)
    model.save(tmp_path / "gp.safetensors")
    again = Model.load(tmp_path / "gp.safetensors")
    assert isinstance(again, GP)
    close(again.predict(NEW).mean, model.predict(NEW).mean, 1e-12)
    close(again.predict(NEW).std, model.predict(NEW).std, 1e-12)
    assert repr(again) == repr(model)
    assert len(repr(model).splitlines()) <= 6


def test_frames_go_in() -> None:
    frame = pd.DataFrame(X.numpy(), columns=["a", "b"])
    model = GP(kernel=RBF(), noise=0.3, learn=False)
    whole = model.fit(frame, pd.Series(Y.numpy())).predict(frame)
    close(whole.mean, GP(kernel=RBF(), noise=0.3, learn=False).fit(X, Y).predict(X).mean, 1e-12)
    frame.loc[3, "b"] = np.nan
    with pytest.raises(ValueError, match="x is not finite at row 3, column 'b'"):
        model.fit(frame, Y)


class Crooked(Kernel):
    """Not positive definite."""

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return -torch.ones(len(x), len(z), dtype=x.dtype)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: GP(noise=0.0), ValueError, "GP: noise must be positive"),
        (lambda: GP(noise=BINARY), TypeError, "not conjugate .* GP\\(likelihood=...\\)"),
        (lambda: GP(kernel="rbf"), TypeError, "kernel is a Kernel, such as RBF"),
        (lambda: GP(likelihood="poisson"), TypeError, "likelihood is a Likelihood"),
        (lambda: GP(likelihood=BINARY, noise=1.0), ValueError, "noise belongs to regression"),
        (lambda: GP(likelihood=br.CategoricalLikelihood()), TypeError, "GP has one function"),
        (lambda: GP(likelihood=br.HeteroscedasticLikelihood()), TypeError, "GP has one function"),
        (lambda: GP(likelihood=br.GaussianLikelihood()), TypeError, "leave the likelihood out"),
        (lambda: GP(rate=0.0), ValueError, "rate ρ lies in"),
        (lambda: GP(starts=0), ValueError, "starts is a whole number"),
        (lambda: GP(kernel=Crooked(), noise=0.1).fit(X, Y), ValueError, "Crooked.* not positive"),
        (lambda: GP(likelihood=POISSON).fit(X, Y), ValueError, "PoissonLikelihood needs counts"),
        (lambda: GP().fit(X, Y[:3]), ValueError, "y has one number for each of 40 rows"),
        (lambda: GP().fit(X[:1], Y[:1]), ValueError, "one row says nothing about noise"),
        (lambda: GP().predict(X), NotFittedError, "GP has seen no data"),
        (lambda: GP(noise=1.0).fit(X, Y).predict(X[:, :1]), ValueError, "x has 1 columns"),
    ],
)
def test_bad_input_is_refused(build: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("y", [torch.zeros(ROWS), torch.ones(ROWS)])
def test_targets_that_are_all_the_same(y: Tensor) -> None:
    answers = GP(likelihood=BINARY).fit(X, y).predict(X)
    assert ((answers.mean - y).abs() < 0.1).all()
    close(GP().fit(X, y).predict(X).mean, y.double(), 1e-4)
    assert (GP(likelihood=POISSON).fit(X, y).predict(X).mean < 1.5).all()
