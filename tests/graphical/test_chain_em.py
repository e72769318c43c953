"""EM raises the exact evidence with every pass, and finds what made the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from bayesrule.graphical._chain_em import PARTS, maximised, start
from bayesrule.graphical._filtering import Chain, filtered, smoothed
from graphical.test_filtering import chain, series

Array = NDArray[np.float64]


def drawn(one: Chain, steps: int, seed: int = 0) -> Array:
    """A series that a chain made."""
    rng = np.random.default_rng(seed)
    z = rng.multivariate_normal(one.first_mean, one.first_covariance)
    found = []
    for _ in range(steps):
        found.append(rng.multivariate_normal(one.offset + one.observation @ z, one.noise))
        z = rng.multivariate_normal(one.transition @ z, one.process)
    return np.array(found)


def climbed(one: Chain, y: Array, learn: tuple[str, ...], passes: int) -> tuple[Chain, Array]:
    trace = []
    for _ in range(passes):
        found = filtered(one, y)
        trace.append(found.log_probs.sum())
        one = maximised(one, smoothed(one, found), y, learn, independent=False)
    return one, np.array(trace)


@pytest.mark.parametrize("learn", [PARTS, *[(part,) for part in PARTS]])
def test_every_pass_raises_the_evidence(learn: tuple[str, ...]) -> None:
    one = chain(3, 2)
    _, trace = climbed(one, series(one, steps=40), learn, passes=8)
    assert (np.diff(trace) > -1e-9).all()
    assert trace[-1] - trace[0] > 1e-6


def test_a_fixed_point_has_no_slope() -> None:
    """At convergence the evidence is stationary in the process noise and in the noise."""
    truth = Chain(*(np.array([[v]]) for v in (0.8, 0.5, 1.0, 0.3)), *np.zeros((2, 1)), np.eye(1))
    y = drawn(truth, 200)
    found, _ = climbed(truth, y, ("process", "noise"), passes=800)

    def evidence(part: str, factor: float) -> float:
        changed = replace(found, **{part: factor * getattr(found, part)})
        return float(filtered(changed, y).log_probs.sum())

    for part in ("process", "noise"):
        slope = (evidence(part, 1.0 + 1e-4) - evidence(part, 1.0 - 1e-4)) / 2e-4
        assert abs(slope) < 1e-3
        assert evidence(part, 1.0) > max(evidence(part, 0.9), evidence(part, 1.1))


def test_what_is_zero_stays_zero() -> None:
    one = replace(chain(2, 1), process=np.diag([0.5, 0.0]))
    found, _ = climbed(one, series(one, steps=30), ("process",), passes=5)
    assert abs(found.process[1, 1]) < 1e-12
    assert found.process[0, 0] > 0.0


def test_a_first_guess_is_a_chain_that_explains_a_wave() -> None:
    t = np.arange(200)
    y = np.stack([np.sin(0.3 * t), np.cos(0.3 * t + 0.5)], axis=1)
    y += 0.1 * np.random.default_rng(0).normal(size=y.shape)
    y[20:25] = np.nan
    one = start(y, 2)
    frequency = abs(np.angle(np.linalg.eigvals(one.transition)))
    np.testing.assert_allclose(frequency, 0.3, atol=0.02)
    whole, trace = climbed(one, y, PARTS, passes=20)
    assert trace[-1] > trace[0]
    # The gap is filled with the wave.
    filled = smoothed(whole, filtered(whole, y)).means[20:25] @ whole.observation.T + whole.offset
    np.testing.assert_allclose(filled[:, 0], np.sin(0.3 * t[20:25]), atol=0.15)
