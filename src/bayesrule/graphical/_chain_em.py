"""EM for linear-Gaussian chains: the states' expected moments, and the parameters that fit them."""

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
    """`Σ E[b bᵀ]`, `Σ E[b aᵀ]`, `Σ E[a aᵀ]` of `count` pairs, for `b = M a + noise`."""

    after: Array
    crossed: Array
    before: Array
    count: int

    def slope(self) -> Array:
        """`M = E[b aᵀ] E[a aᵀ]⁻¹`, the most probable one."""
        return np.linalg.solve(self.before, self.crossed.T).T.astype(np.float64, copy=False)

    def spread(self, slope: Array) -> Array:
        """`E[(b − M a)(b − M a)ᵀ]`, averaged."""
        half = slope @ self.crossed.T
        whole = self.after - half - half.T + slope @ self.before @ slope.T
        return symmetric(whole) / self.count


def maximised(
    chain: Chain, found: Smoothed, y: Array, learn: Iterable[str], independent: bool
) -> Chain:
    """The M-step: the most probable parameters given expected moments of the states.

    Shumway & Stoffer (1982); Khan & Rue (2023), sec. 5.2. Where noises are `independent`, process
    and noise stay diagonal; what is 0 stays 0.
    """
    wanted, new = set(learn), chain
    if wanted & {"transition", "process"} and len(y) > 1:
        new = _regressed(new, _transitions(found), wanted, independent, "transition", "process")
    if wanted & {"observation", "noise"}:
        new = _regressed(
            new, _observations(chain, found, y), wanted, independent, "observation", "noise"
        )
    if "first_mean" in wanted:
        new = replace(new, first_mean=found.means[0])
    if "first_covariance" in wanted:
        away = found.means[0] - new.first_mean
        new = replace(new, first_covariance=found.covariances[0] + np.outer(away, away))
    return new


def _regressed(
    chain: Chain, pairs: _Pairs, wanted: set[str], independent: bool, slope: str, spread: str
) -> Chain:
    """The chain with the slope and the spread that fit the pairs best, where they are wanted."""
    known = pairs.slope() if slope in wanted else getattr(chain, slope)
    new = {slope: known}
    if spread in wanted:
        new[spread] = _kept(pairs.spread(known), independent)
    return replace(chain, **new)


def _kept(covariance: Array, independent: bool) -> Array:
    return np.diag(np.diagonal(covariance)) if independent else covariance


def _transitions(found: Smoothed) -> _Pairs:
    seconds = found.covariances + found.means[:, :, None] * found.means[:, None]
    crossed = found.crossed + found.means[1:, :, None] * found.means[:-1, None]
    return _Pairs(seconds[1:].sum(0), crossed.sum(0), seconds[:-1].sum(0), len(crossed))


def _observations(chain: Chain, found: Smoothed, y: Array) -> _Pairs:
    """Targets and their states; a step without any target says nothing and is left out."""
    seen = ~np.isnan(y)
    patterns = np.unique(seen[seen.any(1)], axis=0)
    parts = [_of_pattern(chain, found, y, seen, pattern) for pattern in patterns]
    return _Pairs(
        sum((one.after for one in parts), np.zeros_like(chain.noise)),
        sum((one.crossed for one in parts), np.zeros_like(chain.observation)),
        sum((one.before for one in parts), np.zeros_like(chain.process)),
        sum(one.count for one in parts),
    )


def _of_pattern(
    chain: Chain, found: Smoothed, y: Array, seen: NDArray[np.bool_], pattern: NDArray[np.bool_]
) -> _Pairs:
    """Steps of which the same values are there: `y = B z + c + N(0, S)`, the missing ones guessed.

    Given state and observed values, a missing one has the mean `C_u z + G (y_o − C_o z)` with
    `G = R_uo R_oo⁻¹`, and the covariance `R_uu − G R_ou`.
    """
    rows = (seen == pattern).all(1)
    means, covariances = found.means[rows], found.covariances[rows]
    hidden = ~pattern
    guess = np.zeros((len(pattern), int(pattern.sum())))
    guess[pattern] = np.eye(int(pattern.sum()))
    known = chain.noise[np.ix_(pattern, pattern)]
    guess[hidden] = np.linalg.solve(known, chain.noise[np.ix_(pattern, hidden)]).T
    slope = chain.observation - guess @ chain.observation[pattern]
    left = chain.noise - guess @ chain.noise[pattern]
    fixed = (y[rows][:, pattern] - chain.offset[pattern]) @ guess.T
    seconds = covariances.sum(0) + means.T @ means
    mixed = fixed.T @ means
    half = slope @ mixed.T
    after = slope @ seconds @ slope.T + half + half.T + fixed.T @ fixed + len(means) * left
    return _Pairs(after, slope @ seconds + mixed, seconds, len(means))


def lifted(noise: Array, floor: Array) -> Array:
    """The noise, with more on its diagonal where it is no wider than `floor` (P,) in some way.

    A series without noise would leave none, and the filter could not divide by it.
    """
    scale = 1.0 / np.sqrt(floor)
    lowest = float(np.linalg.eigvalsh(noise * scale * scale[:, None]).min())
    return noise if lowest >= 1.0 else noise + (1.0 - lowest) * np.diag(floor)


def blank(y: Array, states: int) -> Chain:
    """A chain of zeros about the mean, for parameters that are all given."""
    columns = y.shape[1]
    square, noise = np.zeros((states, states)), np.zeros((columns, columns))
    observation, offset = np.zeros((columns, states)), np.nanmean(y, axis=0)
    return Chain(square, square, observation, noise, offset, np.zeros(states), square)


def start(y: Array, states: int, seed: int = 0) -> Chain:
    """A first guess of all parameters: the main directions of a window, and regression on them.

    Windows of `lags` steps are laid side by side, missing values at the mean; the scores of their
    principal components stand for the states.
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
    # A little noise keeps directions apart that the data do not have.
    jitter = 1e-3 * filled.std() * np.random.default_rng(seed).normal(size=windows.shape)
    left, singular, _ = np.linalg.svd(windows + jitter, full_matrices=False)
    z = left[:, :states] * singular[:states] / np.sqrt(lags)
    fit = np.linalg.lstsq(z[:-1], z[1:], rcond=None)[0].T
    seen_by = np.linalg.lstsq(z, filled[: len(z)], rcond=None)[0].T
    error, away = z[1:] - z[:-1] @ fit.T, filled[: len(z)] - z @ seen_by.T
    floor = 1e-2 * np.diag(filled.var(0) + 1e-12)
    return Chain(
        transition=fit,
        process=error.T @ error / len(error) + 1e-3 * np.diag(z.var(0) + 1e-12),
        observation=seen_by,
        noise=away.T @ away / len(away) + floor,
        offset=offset,
        first_mean=np.zeros(states),
        first_covariance=np.diag(z.var(0) + 1e-12),
    )
