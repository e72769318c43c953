"""Factor analysis and probabilistic PCA against closed forms and scikit-learn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, randn, z_close
from scipy import stats
from sklearn import decomposition as sk
from torch import Tensor

from bayesrule.graphical import (
    EM,
    PPCA,
    SVI,
    FactorAnalysis,
    FitWarning,
    NotFittedError,
    OnlineEM,
)

LONG = EM(passes=50_000, tol=1e-13)


def clean(num: int = 400, seed: int = 0) -> Tensor:
    """Eight columns with two numbers behind them, off the origin."""
    return 10.0 + randn(num, 2, seed=seed) @ randn(2, 8, seed=99)


def rows(num: int = 400, seed: int = 0) -> Tensor:
    """The same with noise, of another size in each column."""
    return clean(num, seed) + torch.linspace(0.6, 1.3, 8, dtype=DTYPE) * randn(
        num, 8, seed=seed + 1
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_probabilistic_pca_reaches_its_closed_form(k: int) -> None:
    x = rows()
    model = PPCA(components=k, inference=LONG).fit(x)
    values, vectors = torch.linalg.eigh((x - x.mean(0)).T @ (x - x.mean(0)) / len(x))
    values, vectors = values.flip(0), vectors.flip(1)
    noise = values[k:].mean()
    close(model.noise_variance_, noise, 1e-7)
    parts = vectors[:, :k] * (values[:k] - noise).sqrt()
    close(model.components_.T @ model.components_, parts @ parts.T, 1e-5)
    # The rows are the eigenvectors themselves, up to their signs.
    close(model.components_.T.abs(), parts.abs(), 1e-4)
    close(model.mean_, x.mean(0))


def test_the_likelihood_is_that_of_the_gaussian() -> None:
    x = rows()
    for model in (PPCA(components=2).fit(x), FactorAnalysis(components=2).fit(x)):
        truth = stats.multivariate_normal(model.mean_, model.get_covariance()).logpdf(x.numpy())
        close(model.log_prob(x), torch.from_numpy(truth), 1e-9)
        assert model.report_.objective[-1] == pytest.approx(truth.sum(), rel=1e-9)
        assert model.report_.converged


def test_probabilistic_pca_is_that_of_scikit_learn() -> None:
    x = rows()
    ours, other = PPCA(components=2, inference=LONG).fit(x), sk.PCA(2).fit(x.numpy())
    # Theirs divides by n − 1; the largest likelihood has n.
    assert float(ours.noise_variance_) == pytest.approx(other.noise_variance_ * 399 / 400, rel=1e-7)
    assert ours.score(x) >= other.score(x.numpy())


def test_factor_analysis_is_as_likely_as_that_of_scikit_learn() -> None:
    x = rows()
    ours = FactorAnalysis(components=2, inference=LONG).fit(x)
    other = sk.FactorAnalysis(2, tol=1e-13, max_iter=100_000, svd_method="lapack").fit(x.numpy())
    assert ours.score(x) == pytest.approx(other.score(x.numpy()), rel=1e-9)
    close(ours.get_covariance(), torch.from_numpy(other.get_covariance()), 1e-4)
    close(ours.noise_variance_, torch.from_numpy(other.noise_variance_), 1e-4)
    # Both turn W so that Wᵀ Ψ⁻¹ W is diagonal.
    close(ours.components_.abs(), torch.from_numpy(np.abs(other.components_)), 1e-3)
    close(ours.transform(x).abs(), torch.from_numpy(np.abs(other.transform(x.numpy()))), 1e-3)


@pytest.mark.parametrize("kind", [PPCA, FactorAnalysis])
def test_every_pass_raises_the_likelihood(kind: type[FactorAnalysis]) -> None:
    steps = np.diff(kind(components=2).fit(rows()).report_.objective)
    assert (steps > -1e-8).all()
    assert steps.sum() > 100.0


def test_one_pass_is_regression_on_the_expected_hidden_numbers() -> None:
    x = rows(50)
    first = randn(2, 8, seed=4)
    model = FactorAnalysis(components=2, inference=EM(passes=1)).fit(x, components=first)
    centred = x - x.mean(0)
    noise = 0.5 * centred.square().mean(0)
    inverse = torch.linalg.inv(first.T @ first + noise.diag())
    hidden = centred @ inverse @ first.T
    spread = torch.eye(2, dtype=DTYPE) - first @ inverse @ first.T
    second = 50 * spread + hidden.T @ hidden
    loadings = centred.T @ hidden @ torch.linalg.inv(second)
    # EM with z ~ N(0, R): the root of R goes into W.
    root = torch.linalg.cholesky(second / 50)
    close(model._factors.loadings, loadings @ root, 1e-9)
    left = centred.square().mean(0) - (loadings * (centred.T @ hidden)).sum(1) / 50
    close(model.noise_variance_, left, 1e-9)


def test_batches_come_near_the_whole() -> None:
    x = rows(20_000)
    whole = FactorAnalysis(components=2).fit(x)
    how = OnlineEM(batch_size=500, passes=20, tol=0.0, forgetting=0.6)
    parts = FactorAnalysis(components=2, inference=how).fit(x)
    assert parts.score(x) > whole.score(x) - 2e-3


def test_rows_are_rebuilt_without_their_noise() -> None:
    x, truth = rows(2000), clean(2000)
    model = FactorAnalysis(components=2).fit(x)
    rebuilt = model.predict(x)
    close(rebuilt, model.inverse_transform(model.transform(x)))
    assert float((rebuilt - truth).square().mean()) < 0.4 * float((x - truth).square().mean())


def test_draws_are_of_the_density() -> None:
    model = FactorAnalysis(components=2).fit(rows())
    drawn = model.sample(20_000, seed=1)
    z_close(drawn, model.mean_)
    centred = drawn - model.mean_
    z_close(centred[:, :1] * centred, model.get_covariance()[0])


def test_frames_and_files(tmp_path: Path) -> None:
    x = rows()
    model = PPCA(components=2).fit(pd.DataFrame(x.numpy()))
    model.save(tmp_path / "ppca.safetensors")
    again = PPCA.load(tmp_path / "ppca.safetensors")
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert again.inference == model.inference
    assert repr(again) == repr(model)
    assert len(repr(model).splitlines()) <= 12


def test_a_column_without_noise_is_reported() -> None:
    x = torch.cat([rows(), rows()[:, :1]], 1)  # the last column is the first one
    with pytest.warns(FitWarning, match=r"Column \d is left without noise.*Take fewer components"):
        FactorAnalysis(components=3, inference=EM(passes=5000, tol=1e-9)).fit(x)


def test_bad_input_is_refused() -> None:
    x = rows(20)
    with pytest.raises(ValueError, match=r"fitted by EM\(\) or, on batches, by OnlineEM\(\)"):
        PPCA(components=2, inference=SVI())
    with pytest.raises(ValueError, match="9 components need as many columns; got 8"):
        PPCA(components=9).fit(x)
    with pytest.raises(ValueError, match="components is a whole number"):
        FactorAnalysis(components=0)
    with pytest.raises(ValueError, match="x has 1 rows; at least 2"):
        PPCA(components=1).fit(x[:1])
    x[3, 2] = math.inf
    with pytest.raises(ValueError, match="row 3, column 2: inf"):
        PPCA(components=1).fit(x)
    with pytest.raises(NotFittedError, match="no data"):
        PPCA(components=1).transform(rows(5))
    with pytest.raises(ValueError, match=r"components are \(2, 8\); got \(3, 8\)"):
        PPCA(components=2).fit(rows(), components=randn(3, 8))
