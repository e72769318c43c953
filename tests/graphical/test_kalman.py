"""State-space models: fitted series against joint Gaussians, known answers and themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import close
from scipy.optimize import minimize
from torch import Tensor

import bayesrule as br
from bayesrule.graphical import Kalman, Level, Model, NotFittedError, Season, Trend
from bayesrule.graphical._filtering import filtered
from bayesrule.graphical.kalman import _evidence
from graphical.test_chain_em import drawn
from graphical.test_filtering import Array, block, chain, conditioned, series

NAMES = (
    "transition", "process", "observation", "noise", "offset", "first_mean", "first_covariance",
)  # fmt: skip


def given(states: int = 3, targets: int = 2) -> tuple[Kalman, Array]:
    """A model of which all parameters are given, and a series with gaps."""
    one = chain(states, targets)
    y = series(one, steps=14)
    return Kalman(**{name: getattr(one, name) for name in NAMES}).fit(y), y


def test_given_parameters_are_used_as_they_are() -> None:
    model, y = given()
    assert model.log_evidence == pytest.approx(conditioned(model.chain_, y)[2], abs=1e-10)
    report = model.report_
    assert report is not None
    assert report.passes == 1
    assert report.why == "exact: all parameters are given"


def test_two_steps_are_enough_where_nothing_is_learned() -> None:
    model, y = given()
    short = Kalman(**{name: getattr(model.chain_, name) for name in NAMES}).fit(y[:2])
    np.testing.assert_allclose(short.filtered_.means, model.filtered_.means[:2], atol=1e-12)


def test_gaps_are_filled_and_forecasts_made_as_by_the_joint_gaussian() -> None:
    model, y = given()
    one, ahead = model.chain_, 5
    longer = np.concatenate([y, np.full((ahead, 2), np.nan)])
    means, joint, _ = conditioned(one, longer)
    observed = means @ one.observation.T + one.offset
    covers = [one.observation @ block(joint, t, t, 3) @ one.observation.T for t in range(19)]
    whole = torch.as_tensor(observed), torch.as_tensor(np.stack(covers)).diagonal(dim1=1, dim2=2)
    filled, forecast = model.smooth(), model.predict(ahead)
    for p, part in ((filled, slice(0, 14)), (forecast, slice(14, 19))):
        close(p.mean, whole[0][part], 1e-9)
        close(p.epistemic, whole[1][part], 1e-9)
        close(p.aleatoric, torch.as_tensor(one.noise.diagonal().copy()).expand_as(p.mean), 1e-12)


def test_draws_are_of_the_whole_course() -> None:
    model, y = given()
    means, joint, _ = conditioned(model.chain_, y)
    paths = model.sample(num=20_000)
    assert paths.shape == (20_000, 14, 2)
    observe = np.kron(np.eye(14), model.chain_.observation)
    exact = means @ model.chain_.observation.T + model.chain_.offset
    cover = observe @ joint @ observe.T
    error = np.sqrt(cover.diagonal() / 20_000).reshape(14, 2)
    assert (abs(paths.mean(0).numpy() - exact) < 5.0 * error).all()
    found = np.cov(paths.reshape(20_000, -1).numpy().T)
    np.testing.assert_allclose(found, cover, atol=0.06 * cover.max())


def test_more_steps_are_taken_in_and_scored_as_one_series() -> None:
    model, y = given()
    one = model.chain_
    part = Kalman(**{name: getattr(one, name) for name in NAMES}).fit(y[:9])
    whole = filtered(one, y).log_probs
    seen = (~np.isnan(y[9:])).any(1)
    assert part.score(y[9:]) == pytest.approx(whole[9:][seen].mean(), abs=1e-12)
    part.update(y[9:11]).update(y[11:])
    assert part.log_evidence == pytest.approx(model.log_evidence, abs=1e-10)
    close(part.predict(3).mean, model.predict(3).mean, 1e-12)


NILE_LIKE = np.cumsum(0.6 * np.random.default_rng(0).normal(size=120)) + np.random.default_rng(
    1
).normal(size=120)


def test_variances_of_a_level_have_the_largest_evidence() -> None:
    y = NILE_LIKE.copy()
    y[40:46] = np.nan
    model = Kalman().fit(y)
    assert model.report_ is not None
    assert model.report_.converged

    def loss(logs: Array) -> float:
        q, r = np.exp(logs)
        fixed = {"first_mean": model.chain_.first_mean}
        fixed["first_covariance"] = model.chain_.first_covariance
        other = Kalman(transition=1.0, observation=1.0, process=q, noise=r, offset=0.0, **fixed)
        return -other.fit(y).log_evidence

    best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-5})
    assert model.log_evidence == pytest.approx(-best.fun, abs=1e-5)
    found = [model.chain_.process[0, 0], model.chain_.noise[0, 0]]
    np.testing.assert_allclose(found, np.exp(best.x), rtol=0.01)


def test_slopes_of_the_evidence_are_those_of_differences() -> None:
    """Fisher's identity: the smoother's moments are enough."""
    model = Kalman(parts=(Trend(), Season(period=6))).fit(NILE_LIKE[:60])
    y = NILE_LIKE[:60, None].copy()
    y[10:14] = np.nan
    process = torch.tensor([0.3, 0.02, 0.1, 0.1], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    value = _evidence(model.chain_, y, process, noise)
    slopes = torch.autograd.grad(value, (process, noise))
    for which, slope in ((0, slopes[0]), (1, slopes[1])):
        for k in range(len(slope)):
            moved = [process.detach().clone(), noise.detach().clone()]
            each = []
            for sign in (1.0, -1.0):
                moved[which][k] += sign * 1e-5
                each.append(float(_evidence(model.chain_, y, *moved)))
                moved[which][k] -= sign * 1e-5
            assert float(slope[k]) == pytest.approx((each[0] - each[1]) / 2e-5, rel=1e-4, abs=1e-4)


def test_a_trend_and_a_season_are_carried_on() -> None:
    t = np.arange(120)
    wave = 3.0 * np.sin(2.0 * np.pi * t / 12) + np.cos(4.0 * np.pi * t / 12)
    truth = 5.0 + 0.2 * t + wave
    y = truth + 0.3 * np.random.default_rng(0).normal(size=120)
    y[50:58] = np.nan
    model = Kalman(parts=(Trend(), Season(period=12, harmonics=2))).fit(y[:96])
    ahead = model.predict(24)
    np.testing.assert_allclose(ahead.mean.numpy(), truth[96:], atol=1.0)
    low, high = ahead.interval(0.95)
    inside = (low.numpy() < y[96:]) & (y[96:] < high.numpy())
    assert inside.mean() > 0.8
    assert (ahead.std[1:] >= ahead.std[:-1] - 1e-3).all()
    filled = model.smooth()
    np.testing.assert_allclose(filled.mean.numpy()[50:58], truth[50:58], atol=1.0)
    # Less is known where values are missing.
    assert float(filled.epistemic[53]) > float(filled.epistemic[40])
    assert model.score(y[96:]) > Kalman().fit(y[:96]).score(y[96:])


def test_series_side_by_side_are_fitted_as_if_alone() -> None:
    y = np.stack([NILE_LIKE, 10.0 * NILE_LIKE[::-1]], axis=1)
    both, alone = Kalman().fit(y), [Kalman().fit(y[:, k]) for k in range(2)]
    assert both.log_evidence == pytest.approx(sum(m.log_evidence for m in alone), abs=1e-3)
    assert both.predict(3).mean.shape == (3, 2)
    assert alone[0].predict(3).mean.shape == (3,)
    torch.testing.assert_close(both.predict(1).mean[0, 0], alone[0].predict(1).mean[0], rtol=1e-2,
                               atol=1e-2)  # fmt: skip


def test_em_learns_what_is_not_given_and_never_lowers_the_evidence() -> None:
    truth = chain(2, 3)
    y = drawn(truth, 150)
    y[np.random.default_rng(0).random(y.shape) < 0.1] = np.nan
    model = Kalman(states=2, passes=200).fit(y)
    assert model.report_ is not None
    assert (np.diff(model.report_.objective) > -1e-8).all()
    # As many parameters as the truth, found from the data, explain these at least as well.
    assert model.log_evidence > filtered(truth, y).log_probs.sum()
    held = Kalman(observation=truth.observation, noise=truth.noise, passes=30).fit(y)
    np.testing.assert_array_equal(held.chain_.observation, truth.observation)
    np.testing.assert_array_equal(held.chain_.noise, truth.noise)
    assert not np.allclose(held.chain_.transition, model.chain_.transition)


def test_it_says_what_it_came_to() -> None:
    model = Kalman(states=1, passes=3).fit(NILE_LIKE)
    assert model.report_ is not None
    assert not model.report_.converged
    assert model.report_.why == "EM still gains after 3 passes"
    shown = repr(model)
    assert "120 steps of 1 series, 0 values missing; 1 states" in shown
    assert len(shown.splitlines()) <= 6


@pytest.mark.parametrize("options", [{"parts": (Trend(), Season(period=7))}, {"states": 2}])
def test_a_saved_model_is_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    model = Kalman(passes=20, **options).fit(NILE_LIKE)
    model.save(tmp_path / "series.safetensors")
    again = Model.load(tmp_path / "series.safetensors")
    assert isinstance(again, Kalman)
    close(again.predict(4).mean, model.predict(4).mean, 1e-14)
    close(again.smooth().std, model.smooth().std, 1e-14)
    assert repr(again) == repr(model)
    assert again.predict(4).mean.shape == (4,)


def test_a_saved_chain_keeps_its_matrices(tmp_path: Path) -> None:
    model, _ = given()
    model.save(tmp_path / "chain.safetensors")
    again = Kalman.load(tmp_path / "chain.safetensors")
    assert again.transition == model.transition
    close(again.predict(4).mean, model.predict(4).mean, 1e-14)


@pytest.mark.parametrize(
    "kind", [pd.Series, pd.DataFrame, torch.tensor, np.ndarray.tolist], ids=lambda k: k.__name__
)
def test_lists_frames_and_tensors_go_in(kind: Callable[[Any], Any]) -> None:
    y = NILE_LIKE.copy()
    y[3] = np.nan
    fixed: dict[str, Any] = {"transition": 1.0, "observation": 1.0, "process": 0.4, "noise": 1.0}
    rest = {"offset": 0.0, "first_mean": 0.0, "first_covariance": 1.0}
    found = Kalman(**fixed, **rest).fit(kind(y))
    assert found.log_evidence == pytest.approx(Kalman(**fixed, **rest).fit(y).log_evidence)


def _bad(y: Tensor) -> Tensor:
    y[2] = torch.inf
    return y


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: Kalman(noise=-1.0).fit(NILE_LIKE), ValueError, "noise must be symmetric and pos"),
        (lambda: Kalman(process=-1.0).fit(NILE_LIKE), ValueError, "process .* semi-definite"),
        (lambda: Kalman(transition=np.nan), ValueError, "transition must be finite"),
        (lambda: Kalman(noise=br.PoissonLikelihood()), TypeError, "not conjugate .* GP"),
        (lambda: Kalman(parts=("level",)), TypeError, "parts are such as Level"),
        (lambda: Kalman(parts=(Level(),), noise=1.0), ValueError, "parts or a chain, not both"),
        (lambda: Kalman(states=2, transition=np.eye(3)).fit(NILE_LIKE), ValueError, "the shape"),
        (lambda: Kalman(states=3).fit(NILE_LIKE[:5]), ValueError, "learned from 10 steps or more"),
        (lambda: Kalman(states=0), ValueError, "states is a whole number"),
        (lambda: Season(period=4, harmonics=3), ValueError, "harmonics are 1 to half of it"),
        (lambda: Kalman().fit(_bad(torch.zeros(9))), ValueError, "y is not finite at row 2"),
        (lambda: Kalman().fit(np.full(9, np.nan)), ValueError, "a column without any value"),
        (lambda: Kalman().fit([1.0]), ValueError, "y has 1 rows; at least 2"),
        (lambda: Kalman().predict(1), NotFittedError, "Kalman has seen no data"),
        (
            lambda: Kalman().fit(NILE_LIKE).predict(0),
            ValueError,
            "steps is a whole number of at least 1, got 0",
        ),
        (lambda: Kalman().fit(NILE_LIKE).score(np.ones((3, 2))), ValueError, "y has 2 columns"),
    ],
)
def test_bad_input_is_refused(build: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("options", [{}, {"states": 1}, {"states": 2}])
def test_a_series_that_never_changes_is_no_problem(options: dict[str, Any]) -> None:
    p = Kalman(passes=50, **options).fit(np.full(20, 3.0)).predict(2)
    np.testing.assert_allclose(p.mean.numpy(), 3.0, atol=1e-3)


def test_a_wave_without_noise_is_learned_by_em() -> None:
    model = Kalman(states=3, passes=300).fit(np.sin(0.3 * np.arange(60)))
    p = model.predict(10)
    np.testing.assert_allclose(p.mean.numpy(), np.sin(0.3 * np.arange(60, 70)), atol=0.05)
    assert (p.std > 0).all()
