"""Filter and smoother against conditioning of the whole joint Gaussian."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from bayesrule.graphical._blocks import affine
from bayesrule.graphical._filtering import Chain, filtered, smoothed

Array = NDArray[np.float64]


def covariance(size: int, rng: np.random.Generator) -> Array:
    root = rng.normal(size=(size, size + 2))
    return root @ root.T / size


def chain(states: int = 3, targets: int = 2, seed: int = 0) -> Chain:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(states, states)))[0]
    return Chain(
        transition=0.9 * turn,
        process=covariance(states, rng),
        observation=rng.normal(size=(targets, states)),
        noise=covariance(targets, rng),
        offset=rng.normal(size=targets),
        first_mean=rng.normal(size=states),
        first_covariance=covariance(states, rng),
    )


def series(one: Chain, steps: int = 9, missing: float = 0.3, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(steps, len(one.offset)))
    y[rng.random(y.shape) < missing] = np.nan
    y[3] = np.nan
    return y


def dense(one: Chain, steps: int) -> tuple[Array, Array, Array, Array]:
    """Mean and covariance of all states, and the matrices that turn them into all targets."""
    states = one.states
    means, joint = [one.first_mean], np.zeros((steps, states, steps, states))
    joint[0, :, 0] = one.first_covariance
    for t in range(1, steps):
        means.append(one.transition @ means[-1])
        for s in range(t):
            joint[t, :, s] = one.transition @ joint[t - 1, :, s]
            joint[s, :, t] = joint[t, :, s].T
        joint[t, :, t] = one.transition @ joint[t - 1, :, t - 1] @ one.transition.T + one.process
    whole = joint.reshape(steps * states, steps * states)
    eye = np.eye(steps)
    return np.concatenate(means), whole, np.kron(eye, one.observation), np.kron(eye, one.noise)


def conditioned(one: Chain, y: Array, until: int | None = None) -> tuple[Array, Array, float]:
    """All states given the targets before `until`, and the log-density of these."""
    mean, joint, observe, noise = dense(one, len(y))
    targets = y.copy()
    targets[slice(until, None) if until is not None else slice(0, 0)] = np.nan
    seen = ~np.isnan(targets.ravel())
    centre = (observe @ mean + np.tile(one.offset, len(y)))[seen]
    cover = (observe @ joint @ observe.T + noise)[np.ix_(seen, seen)]
    cross = (joint @ observe.T)[:, seen]
    error = targets.ravel()[seen] - centre
    means = mean + cross @ np.linalg.solve(cover, error)
    left = joint - cross @ np.linalg.solve(cover, cross.T)
    log_density = float(multivariate_normal(centre, cover).logpdf(targets.ravel()[seen]))
    return means.reshape(len(y), -1), left, log_density


def block(joint: Array, t: int, s: int, states: int) -> Array:
    return joint[t * states : (t + 1) * states, s * states : (s + 1) * states]


@pytest.mark.parametrize(("states", "targets"), [(1, 1), (3, 2), (2, 4)])
def test_filter_is_conditioning_on_all_targets_so_far(states: int, targets: int) -> None:
    one = chain(states, targets)
    y = series(one)
    found = filtered(one, y)
    for t in range(len(y)):
        for until, means, covariances in (
            (t + 1, found.means, found.covariances),
            (t, found.predicted_means, found.predicted_covariances),
        ):
            if not (~np.isnan(y[:until])).any():
                continue
            exact, joint, _ = conditioned(one, y, until)
            np.testing.assert_allclose(means[t], exact[t], atol=1e-10)
            np.testing.assert_allclose(covariances[t], block(joint, t, t, states), atol=1e-10)
    assert found.log_probs.sum() == pytest.approx(conditioned(one, y)[2], abs=1e-10)


@pytest.mark.parametrize(("states", "targets"), [(1, 1), (3, 2), (2, 4)])
def test_smoother_is_conditioning_on_all_targets(states: int, targets: int) -> None:
    one = chain(states, targets)
    y = series(one)
    found = smoothed(one, filtered(one, y))
    exact, joint, _ = conditioned(one, y)
    np.testing.assert_allclose(found.means, exact, atol=1e-10)
    for t in range(len(y)):
        np.testing.assert_allclose(found.covariances[t], block(joint, t, t, states), atol=1e-10)
        if t:
            crossed = block(joint, t, t - 1, states)
            np.testing.assert_allclose(found.crossed[t - 1], crossed, atol=1e-10)


@pytest.mark.parametrize("targets", [1, 2])
def test_long_series_are_exact_too(targets: int) -> None:
    one = chain(2, targets)
    y = series(one, steps=160, missing=0.0)
    y[100:103] = np.nan
    found = filtered(one, y)
    if targets > 1:
        # Covariances that have settled are shared, and are other ones in a gap.
        assert (found.covariances[90] == found.covariances[91]).all()
        assert (found.covariances[101] != found.covariances[91]).any()
    exact, joint, log_density = conditioned(one, y)
    assert found.log_probs.sum() == pytest.approx(log_density, abs=1e-9)
    back = smoothed(one, found)
    np.testing.assert_allclose(back.means, exact, atol=1e-10)
    for t in range(len(y)):
        np.testing.assert_allclose(back.covariances[t], block(joint, t, t, 2), atol=1e-10)


@pytest.mark.parametrize("steps", [1, 2, 24, 25, 26, 49, 50, 61])
def test_any_number_of_steps_fits_into_blocks(steps: int) -> None:
    one = chain(3, 1)
    y = series(one, steps=max(steps, 5), missing=0.2)[:steps]
    y[0] = 1.0
    found = filtered(one, y)
    exact, _, log_density = conditioned(one, y)
    assert found.log_probs.sum() == pytest.approx(log_density, abs=1e-9)
    np.testing.assert_allclose(smoothed(one, found).means, exact, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 3, 10, 100])
def test_recursions_in_blocks_are_those_step_by_step(steps: int) -> None:
    rng = np.random.default_rng(steps)
    factors, first = 0.5 * rng.normal(size=(steps, 3, 3)), rng.normal(size=(3, 3))
    vectors, matrices = rng.normal(size=(steps, 3)), rng.normal(size=(steps, 3, 3))
    x, cover = first[0], first
    found, found_both = affine(factors, (vectors, x), (matrices, cover))
    for t in range(steps):
        x = factors[t] @ x + vectors[t]
        cover = factors[t] @ cover @ factors[t].T + matrices[t]
        np.testing.assert_allclose(found[t], x, atol=1e-12)
        np.testing.assert_allclose(found_both[t], cover, atol=1e-12)


def test_a_state_without_noise_is_smoothed_too() -> None:
    one = chain(2, 1)
    still = replace(
        one,
        transition=np.eye(2),
        process=np.diag([0.5, 0.0]),
        first_covariance=np.diag([1.0, 0.0]),
    )
    y = series(still, steps=12)
    found = smoothed(still, filtered(still, y))
    exact, _, log_density = conditioned(still, y)
    np.testing.assert_allclose(found.means, exact, atol=1e-9)
    np.testing.assert_allclose(found.means[:, 1], still.first_mean[1], atol=1e-9)
    assert filtered(still, y).log_probs.sum() == pytest.approx(log_density, abs=1e-10)
