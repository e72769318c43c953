"""Filters and smoothers of statsmodels and filterpy, on the same chains.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from graphical.test_filtering import Array, chain, series

from bayesrule.graphical import Kalman
from bayesrule.graphical._filtering import Chain, filtered, smoothed

SIZES = pytest.mark.parametrize(("states", "targets"), [(1, 1), (3, 2), (2, 4)])


@SIZES
def test_beliefs_are_those_of_statsmodels(states: int, targets: int) -> None:
    module = pytest.importorskip("statsmodels.tsa.statespace.kalman_smoother")
    one = chain(states, targets)
    y = series(one, steps=80)
    theirs = module.KalmanSmoother(targets, states)
    theirs.bind(y.copy())
    theirs["transition"], theirs["state_cov"] = one.transition, one.process
    theirs["design"], theirs["obs_cov"] = one.observation, one.noise
    theirs["obs_intercept"], theirs["selection"] = one.offset[:, None], np.eye(states)
    theirs.initialize_known(one.first_mean, one.first_covariance)
    wanted = theirs.smooth()
    found = filtered(one, y)
    ours = smoothed(one, found)
    np.testing.assert_allclose(found.log_probs, wanted.llf_obs, atol=1e-10)
    np.testing.assert_allclose(found.means, wanted.filtered_state.T, atol=1e-10)
    np.testing.assert_allclose(ours.means, wanted.smoothed_state.T, atol=1e-9)
    covers = wanted.smoothed_state_cov.transpose(2, 0, 1)
    np.testing.assert_allclose(ours.covariances, covers, atol=1e-9)


def test_variances_of_a_level_are_those_of_statsmodels() -> None:
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural")
    rng = np.random.default_rng(0)
    y = np.cumsum(0.6 * rng.normal(size=150)) + rng.normal(size=150)
    y[30:40] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = structural.UnobservedComponents(y, "local level").fit(disp=False)
    ours = Kalman().fit(y).chain_
    # They leave the first step out of the likelihood; we begin with a wide belief.
    found = [ours.noise[0, 0], ours.process[0, 0]]
    np.testing.assert_allclose(found, theirs.params, rtol=0.01)


@SIZES
def test_filters_are_those_of_filterpy(states: int, targets: int) -> None:
    module = pytest.importorskip("filterpy.kalman")
    one = chain(states, targets)
    y = series(one, steps=60, missing=0.0)
    found = filtered(one, y)
    means, covariances = _filterpy(module, one, y)
    np.testing.assert_allclose(found.means, means, atol=1e-10)
    np.testing.assert_allclose(found.covariances, covariances, atol=1e-10)


def _filterpy(module: object, one: Chain, y: Array) -> tuple[Array, Array]:
    """Their beliefs after each step, of which some have no target at all."""
    theirs = module.KalmanFilter(dim_x=one.states, dim_z=y.shape[1])  # type: ignore[attr-defined]
    theirs.x, theirs.P = one.first_mean[:, None].copy(), one.first_covariance.copy()
    theirs.F, theirs.Q, theirs.H, theirs.R = (
        one.transition, one.process, one.observation, one.noise,
    )  # fmt: skip
    means, covariances = [], []
    for t, row in enumerate(y):
        if t:
            theirs.predict()
        if not np.isnan(row).any():
            theirs.update((row - one.offset)[:, None])
        means.append(theirs.x[:, 0].copy())
        covariances.append(theirs.P.copy())
    return np.array(means), np.array(covariances)
