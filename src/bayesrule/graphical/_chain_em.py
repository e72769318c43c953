"""EM for linear-Gaussian chains: expected moments of the states, and the best parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayesrule.graphical._filtering import Array, Chain, Smoothed, symmetric

PARTS = ("transition", "process", "observation", "noise", "first_mean", "first_covariance")
"""What EM can learn."""


@dataclass(frozen=True, eq=False)
class _Pairs:
    """`Σ E[b bᵀ]`, `Σ E[b aᵀ]`, `Σ E[a aᵀ]` over `count` pairs: a regression `b = M a + noise`."""

    after: Array
    crossed: Array
    before: Array
    count: int

    def slope(self) -> Array:
        """`M = E[b aᵀ] E[a aᵀ]⁻¹`, of the largest likelihood."""
        return np.linalg.solve(self.before, self.crossed.T).T.astype(np.float64, copy=False)

    def spread(self, slope: Array) -> Array:
        """The covariance of the noise, the mean of `E[(b − M a)(b − M a)ᵀ]`."""
        half = slope @ self.crossed.T
        whole = self.after - half - half.T + slope @ self.before @ slope.T
        return symmetric(whole) / self.count


def maximised(
    chain: Chain, states: Smoothed, y: Array, learn: Iterable[str], independent: bool
) -> Chain:
    """The M-step: the parameters of the largest likelihood given expected moments of the states.

    Shumway & Stoffer (1982); Khan & Rue (2023), sec. 5.2. With `independent` noises, process and
    noise stay diagonal, and variances of 0 stay 0.
    """
    wanted, new = set(learn), chain
    if wanted & {"transition", "process"} and len(y) > 1:
        new = _regressed(new, _transitions(states), wanted, independent, "transition", "process")
    if wanted & {"observation", "noise"}:
        new = _regressed(
            new, _observations(chain, states, y), wanted, independent, "observation", "noise"
        )
    if "first_mean" in wanted:
        new = replace(new, first_mean=states.means[0])
    if "first_covariance" in wanted:
        away = states.means[0] - new.first_mean
        new = replace(new, first_covariance=states.covariances[0] + np.outer(away, away))
    return new


def _regressed(
    chain: Chain, pairs: _Pairs, wanted: set[str], independent: bool, slope: str, spread: str
) -> Chain:
    """The chain with the best slope and noise covariance, those of them that are wanted."""
    matrix = pairs.slope() if slope in wanted else getattr(chain, slope)
    new = {slope: matrix}
    if spread in wanted:
        covariance = pairs.spread(matrix)
        new[spread] = np.diag(np.diagonal(covariance)) if independent else covariance
    return replace(chain, **new)


def _transitions(states: Smoothed) -> _Pairs:
    seconds = states.covariances + states.means[:, :, None] * states.means[:, None]
    crossed = states.crossed + states.means[1:, :, None] * states.means[:-1, None]
    return _Pairs(seconds[1:].sum(0), crossed.sum(0), seconds[:-1].sum(0), len(crossed))


def _observations(chain: Chain, states: Smoothed, y: Array) -> _Pairs:
    """Pairs of states and their targets; steps without any target are left out."""
    seen = ~np.isnan(y)
    patterns = np.unique(seen[seen.any(1)], axis=0)
    parts = [_of_pattern(chain, states, y, seen, pattern) for pattern in patterns]
    return _Pairs(
        sum((part.after for part in parts), np.zeros_like(chain.noise)),
        sum((part.crossed for part in parts), np.zeros_like(chain.observation)),
        sum((part.before for part in parts), np.zeros_like(chain.process)),
        sum(part.count for part in parts),
    )


def _of_pattern(
    chain: Chain, states: Smoothed, y: Array, seen: NDArray[np.bool_], pattern: NDArray[np.bool_]
) -> _Pairs:
    """The pairs of all steps with one pattern of observed values: `y = B z + c + N(0, S)`.

    Missing values are expected ones: given the state and the observed values y_o, they have the
    mean `C_u z + G (y_o − C_o z)` with `G = R_uo R_oo⁻¹`, and the covariance `R_uu − G R_ou`.
    """
    rows = (seen == pattern).all(1)
    means, covariances = states.means[rows], states.covariances[rows]
    missing = ~pattern
    gain = np.zeros((len(pattern), int(pattern.sum())))
    gain[pattern] = np.eye(int(pattern.sum()))
    observed_noise = chain.noise[np.ix_(pattern, pattern)]
    gain[missing] = np.linalg.solve(observed_noise, chain.noise[np.ix_(pattern, missing)]).T
    slope = chain.observation - gain @ chain.observation[pattern]
    noise = chain.noise - gain @ chain.noise[pattern]
    offsets = (y[rows][:, pattern] - chain.offset[pattern]) @ gain.T
    seconds = covariances.sum(0) + means.T @ means
    crossed = offsets.T @ means
    half = slope @ crossed.T
    after = slope @ seconds @ slope.T + half + half.T + offsets.T @ offsets + len(means) * noise
    return _Pairs(after, slope @ seconds + crossed, seconds, len(means))


def lifted(noise: Array, floor: Array) -> Array:
    """The noise covariance, raised on its diagonal if it falls below `floor` (P,) in a direction.

    A series without noise would drive it to zero, and the filter could not divide by it.
    """
    scale = 1.0 / np.sqrt(floor)
    lowest = float(np.linalg.eigvalsh(noise * scale * scale[:, None]).min())
    return noise if lowest >= 1.0 else noise + (1.0 - lowest) * np.diag(floor)


def blank(y: Array, states: int) -> Chain:
    """A chain of zeros about the mean: the shapes of parameters that are all given."""
    columns = y.shape[1]
    square, noise = np.zeros((states, states)), np.zeros((columns, columns))
    observation, offset = np.zeros((columns, states)), np.nanmean(y, axis=0)
    return Chain(square, square, observation, noise, offset, np.zeros(states), square)


def start(y: Array, states: int, seed: int = 0) -> Chain:
    """A first guess of all parameters, by regression on guessed states.

    The guessed states are the scores of the principal components of windows of `lags` steps, with
    missing values at the mean.
    """
    offset = np.nanmean(y, axis=0)
    filled = np.where(np.isnan(y), 0.0, y - offset)
    lags = max(2, -(-2 * states // filled.shape[1]))
    if len(y) < lags + states + 1:
        raise ValueError(
            f"A chain of {states} states is learned from {lags + states + 1} steps or more; got "
            f"{len(y)}."
        )
    windows = np.concatenate([filled[k : len(filled) - lags + k + 1] for k in range(lags)], axis=1)
    # A little noise separates directions that do not occur in the data.
    jitter = 1e-3 * filled.std() * np.random.default_rng(seed).normal(size=windows.shape)
    left, singular, _ = np.linalg.svd(windows + jitter, full_matrices=False)
    z = left[:, :states] * singular[:states] / np.sqrt(lags)
    transition = np.linalg.lstsq(z[:-1], z[1:], rcond=None)[0].T
    observation = np.linalg.lstsq(z, filled[: len(z)], rcond=None)[0].T
    error, residual = z[1:] - z[:-1] @ transition.T, filled[: len(z)] - z @ observation.T
    floor = 1e-2 * np.diag(filled.var(0) + 1e-12)
    return Chain(
        transition=transition,
        process=error.T @ error / len(error) + 1e-3 * np.diag(z.var(0) + 1e-12),
        observation=observation,
        noise=residual.T @ residual / len(residual) + floor,
        offset=offset,
        first_mean=np.zeros(states),
        first_covariance=np.diag(z.var(0) + 1e-12),
    )
