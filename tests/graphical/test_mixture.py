"""Mixtures of Gaussians against scikit-learn pass by pass, and against closed forms."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, randn, z_close
from scipy import stats
from sklearn import mixture as sk
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

import bayesrule as br
from bayesrule.families import ImproperError, NormalWishart
from bayesrule.graphical import (
    EM,
    SVI,
    VB,
    FitWarning,
    GaussianMixture,
    NotFittedError,
    gaussians,
    tables,
)
from bayesrule.graphical.rows import Rows

CENTRES = torch.tensor([[0.0, 0.0, 0.0], [3.0, 3.0, 0.0], [-3.0, 2.0, 5.0]], dtype=DTYPE)


def rows(num: int = 300, seed: int = 0) -> Tensor:
    """Three clouds, far from the origin."""
    which = torch.arange(num) % 3
    return 5.0 + CENTRES[which] + randn(num, 3, seed=seed) * torch.tensor([1.0, 0.5, 0.8])


def shares(num: int, parts: int, seed: int = 1) -> Tensor:
    """Responsibilities at random."""
    return randn(num, parts, seed=seed).mul(0.5).softmax(1)


def theirs(kind: type, passes: int, start: Tensor, x: Tensor, **options: object) -> object:
    """scikit-learn's model after some passes from the same responsibilities."""
    model = kind(n_components=start.shape[1], max_iter=passes, tol=0.0, **options)
    model._initialize_parameters = lambda data, random_state, **_: model._initialize(
        data, start.numpy()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x.numpy())


@pytest.mark.parametrize("passes", [1, 2, 3, 10])
def test_em_is_that_of_scikit_learn_pass_by_pass(passes: int) -> None:
    x, start = rows(), shares(300, 3)
    ours = GaussianMixture(components=3, inference=EM(passes=passes, tol=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        ours.fit(x, responsibilities=start)
    other = theirs(sk.GaussianMixture, passes, start, x)
    close(ours.means_, torch.from_numpy(other.means_), 1e-8)
    close(ours.covariances_, torch.from_numpy(other.covariances_), 1e-8)
    close(ours.weights_, torch.from_numpy(other.weights_), 1e-10)
    assert ours.report_.objective[-1] / 300 == pytest.approx(other.lower_bound_, rel=1e-10)
    close(ours.log_prob(x), torch.from_numpy(other.score_samples(x.numpy())), 1e-8)
    close(ours.predict_proba(x), torch.from_numpy(other.predict_proba(x.numpy())), 1e-7)


@pytest.mark.parametrize("passes", [1, 2, 3, 10])
def test_variational_bayes_is_that_of_scikit_learn_pass_by_pass(passes: int) -> None:
    x, start = rows(), shares(300, 4)
    ours = GaussianMixture(components=4, inference=VB(passes=passes, tol=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        ours.fit(x, responsibilities=start)
    kind = {"weight_concentration_prior_type": "dirichlet_distribution"}
    other = theirs(sk.BayesianGaussianMixture, passes, start, x, **kind)
    close(ours.means_, torch.from_numpy(other.means_), 1e-7)
    close(ours.covariances_, torch.from_numpy(other.covariances_), 1e-7)
    close(ours.weights_, torch.from_numpy(other.weights_), 1e-8)
    close(ours.predict_proba(x), torch.from_numpy(other.predict_proba(x.numpy())), 1e-6)


def test_one_component_is_conjugate_bayes_and_its_bound_the_evidence() -> None:
    x = rows(50)
    ours = GaussianMixture(components=1, inference=VB(), reg_covar=0.0).fit(x)
    centred = x - x.mean(0)
    prior = NormalWishart(tuple(one[0] for one in ours._prior()["components"]))
    told = (centred.sum(0), torch.tensor(-25.0), -0.5 * centred.T @ centred, torch.tensor(25.0))
    after = NormalWishart(tuple(a + b for a, b in zip(prior.natural, told, strict=True)))
    evidence = after.log_partition - prior.log_partition - 0.5 * 50 * 3 * math.log(2 * math.pi)
    assert ours.report_.objective[-1] == pytest.approx(float(evidence), rel=1e-12)
    assert ours.report_.passes == 2
    truth = stats.multivariate_t(
        loc=after.mean + x.mean(0),
        shape=after.scatter * (after.count + 1) / (after.count * (after.degrees - 2)),
        df=float(after.degrees - 2),
    )
    close(ours.log_prob(x), torch.from_numpy(truth.logpdf(x.numpy())), 1e-10)


@pytest.mark.parametrize("how", [EM(tol=1e-9), VB(tol=1e-9)])
def test_every_pass_raises_the_objective(how: EM | VB) -> None:
    model = GaussianMixture(components=3, inference=how).fit(
        rows(), responsibilities=shares(300, 3)
    )
    steps = np.diff(model.report_.objective)
    assert model.report_.converged
    assert (steps > -1e-8).all()
    assert steps.sum() > 10.0


def test_whole_batches_at_full_rate_are_variational_bayes() -> None:
    x, start = rows(), shares(300, 3)
    model = GaussianMixture(components=3, inference=SVI(batch_size=300, delay=1.0, passes=1))
    model.fit(x, responsibilities=start)  # its only step has ρ = 1
    other = GaussianMixture(components=3, inference=VB(passes=1)).fit(x, responsibilities=start)
    close(model.means_, other.means_, 1e-12)
    close(model.covariances_, other.covariances_, 1e-12)


def test_small_steps_are_averages_of_natural_parameters() -> None:
    x = rows()
    model = GaussianMixture(components=3, inference=VB()).fit(x)
    before = {name: tuple(p.clone() for p in parts) for name, parts in model._natural.items()}
    batch = Rows(x[:30], x.mean(0))
    told = model._local(batch).messages
    model.step(batch, num_data=300, rate=0.3)
    for name, parts in model._natural.items():
        for now, old, new, first in zip(
            parts, before[name], told[name], model._prior()[name], strict=True
        ):
            close(now, 0.7 * old + 0.3 * (first + 10.0 * new), 1e-12)


def test_batches_come_near_the_whole() -> None:
    x = rows(6000)
    whole = GaussianMixture(components=3, inference=VB()).fit(x)
    parts = GaussianMixture(components=3, inference=SVI(batch_size=200)).fit(x)
    assert parts.score(x) > whole.score(x) - 2e-3
    assert sorted(parts.weights_.tolist()) == pytest.approx([1 / 3] * 3, abs=0.02)


def test_variational_bayes_empties_components_that_nobody_needs() -> None:
    model = GaussianMixture(components=8, inference=VB(passes=1000)).fit(rows(600))
    assert int((model.weights_ > 0.01).sum()) == 3


def test_restarts_keep_the_best() -> None:
    x = rows(300)
    single = GaussianMixture(components=5).fit(x).report_.objective[-1]
    many = GaussianMixture(components=5, restarts=6).fit(x)
    assert many.report_.objective[-1] > single


@pytest.mark.parametrize("how", [EM(), VB()])
def test_draws_are_of_the_density(how: EM | VB) -> None:
    model = GaussianMixture(components=3, inference=how).fit(rows())
    drawn, which = model.sample(20_000, seed=3)
    second, _ = model.sample(20_000, seed=3)
    assert torch.equal(drawn, second)
    z_close(drawn, (model.weights_.unsqueeze(1) * model.means_).sum(0))
    z_close((which == 0).double(), float(model.weights_[0]))
    # Two estimates of the entropy: of the draws, and of the density on a fine net of one cloud.
    near = model.log_prob(drawn)
    again = model.log_prob(model.sample(20_000, seed=4)[0])
    z_close(near, float(again.mean()), z=8.0)


def test_frames_arrays_lists_and_tensors_are_the_same_data() -> None:
    x = rows(60)
    wanted = GaussianMixture(components=2).fit(x).means_
    for same in (x.numpy(), x.tolist(), pd.DataFrame(x.numpy(), columns=["a", "b", "c"])):
        close(GaussianMixture(components=2).fit(same).means_, wanted, 1e-12)
    single = GaussianMixture(components=2).fit(x.float())
    torch.testing.assert_close(single.means_, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [EM(), SVI(batch_size=100, passes=2)])
def test_tables_stay_in_their_file(how: EM | SVI, tmp_path: Path) -> None:
    x = rows(1000).numpy().astype(np.float32)
    x.tofile(tmp_path / "table")
    mapped = np.memmap(tmp_path / "table", dtype=np.float32, mode="r", shape=x.shape)
    assert tables.matrix(mapped).data_ptr() == mapped.ctypes.data
    found = GaussianMixture(components=3, inference=how).fit(mapped)
    close(found.means_, GaussianMixture(components=3, inference=how).fit(x).means_, 1e-12)
    assert found.predict(mapped).shape == (1000,)


def test_many_rows_are_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(300)
    model = GaussianMixture(components=3, inference=VB()).fit(x)
    whole = model.log_prob(x), model.predict(x), model.predict_proba(x)
    monkeypatch.setattr(gaussians, "_CHUNK", 1)
    pieces = model.log_prob(x), model.predict(x), model.predict_proba(x)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", [EM(), VB(), SVI(passes=2)])
def test_files_hold_everything(how: EM | VB | SVI, tmp_path: Path) -> None:
    x = rows()
    model = GaussianMixture(components=3, inference=how, seed=4).fit(x)
    model.save(tmp_path / "mixture.safetensors")
    again = GaussianMixture.load(tmp_path / "mixture.safetensors")
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert again.report_ == model.report_
    assert again.inference == how
    assert repr(again) == repr(model)
    assert again._divergence() == model._divergence()


def test_a_model_says_what_it_came_to() -> None:
    model = GaussianMixture(components=12).fit(rows())
    lines = repr(model).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 120
    assert "converged after" in lines[1]
    assert repr(GaussianMixture(components=2)) == "GaussianMixture(components=2)"


def test_a_component_that_collapses_is_reported() -> None:
    x = torch.cat([randn(100, 2), 100.0 + torch.zeros(1, 2, dtype=DTYPE)])
    with pytest.warns(FitWarning, match=r"Component \d has collapsed: it holds 1 rows.*VB\(\)"):
        GaussianMixture(components=2).fit(x)
    GaussianMixture(components=2, inference=VB()).fit(x)


def test_a_fit_that_did_not_end_is_reported() -> None:
    with pytest.warns(FitWarning, match="not converged in 2 passes"):
        model = GaussianMixture(components=3, inference=EM(passes=2)).fit(rows())
    assert not model.report_.converged
    assert "used up" in model.report_.why


def test_bad_tables_are_refused_by_row_and_column() -> None:
    x = rows(20).numpy()
    x[7, 2] = math.nan
    with pytest.raises(ValueError, match="x is not finite at row 7, column 2: nan"):
        GaussianMixture(components=2).fit(x)
    with pytest.raises(ValueError, match="row 7, column 'c'"):
        GaussianMixture(components=2).fit(pd.DataFrame(x, columns=["a", "b", "c"]))
    with pytest.raises(ValueError, match=r"One column of numbers is x\[:, None\]"):
        GaussianMixture(components=2).fit(x[:, 0])
    with pytest.raises(ValueError, match="x has 2 rows; at least 3 are needed"):
        GaussianMixture(components=3).fit(x[:2])
    with pytest.raises(ValueError, match="not a number"):
        GaussianMixture(components=2).fit([["a", "b"], ["c", "d"]])


def test_bad_questions_are_refused() -> None:
    with pytest.raises(NotFittedError, match="has seen no data"):
        GaussianMixture(components=2).predict(rows(5))
    model = GaussianMixture(components=2).fit(rows(20))
    with pytest.raises(ValueError, match="2 columns; the model was fitted to 3"):
        model.predict(rows(5)[:, :2])
    with pytest.raises(
        ValueError, match=r"responsibilities are numbers .*\(20, 2\); got \(20, 3\)"
    ):
        model.fit(rows(20), responsibilities=shares(20, 3))
    for wrong in ({"components": 0}, {"components": 2, "reg_covar": -1.0}):
        with pytest.raises(ValueError, match=r"or more|at least 1"):
            GaussianMixture(**wrong)
    with pytest.raises(ValueError, match="forgetting in"):
        SVI(forgetting=0.4)


def test_an_improper_prior_is_refused_by_name() -> None:
    with pytest.raises(ImproperError, match="degrees ν must exceed d − 1"):
        GaussianMixture(components=2, inference=VB(), degrees_of_freedom_prior=1.0).fit(rows(20))
    with pytest.raises(ImproperError, match="concentrations must be positive"):
        GaussianMixture(components=2, inference=VB(), weight_concentration_prior=0.0).fit(rows(20))


def test_the_namespace_is_there() -> None:
    assert br.graphical.GaussianMixture is GaussianMixture
