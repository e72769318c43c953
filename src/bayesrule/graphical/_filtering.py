"""Kalman filter and smoother of a linear-Gaussian chain.

Covariances depend on which values are missing, not on the values themselves. For one series all
recursions run in blocks. For several series covariances soon settle; from then on all steps with
the same values missing share one set of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.graphical._blocks import Array, affine, covariances

_LOG_2PI = math.log(2.0 * math.pi)
_SETTLED = 1e-14
_WIDE = 24
"""At least this many steps run one by one, until the wide first belief has become narrow."""
_CHECK_EVERY = 8
"""How often, in steps, to check whether covariances have settled."""


@dataclass(frozen=True, eq=False)
class Chain:
    """`z₁ ~ N(m₀, P₀)`, `z_t = A z_{t−1} + N(0, Q)`, `y_t = d + C z_t + N(0, R)`.

    `transition` A and `process` Q are (D, D), `observation` C (P, D), `noise` R (P, P), `offset` d
    (P,), `first_mean` m₀ (D,) and `first_covariance` P₀ (D, D).
    """

    transition: Array
    process: Array
    observation: Array
    noise: Array
    offset: Array
    first_mean: Array
    first_covariance: Array

    @property
    def states(self) -> int:
        """D, the size of a state."""
        return len(self.transition)

    @cached_property
    def eye(self) -> Array:
        """The identity matrix (D, D)."""
        return np.eye(self.states)


@dataclass(frozen=True, eq=False)
class _Gains:
    """The U distinct filter steps, which do not depend on observed values; step t is `which[t]`.

    Covariances before and after a step (U, D, D), gains K (U, D, P), `inverse` `S⁻¹` (U, P, P) and
    `log_det` `log |S|` (U,).
    """

    predicted: Array
    covariance: Array
    gain: Array
    inverse: Array
    log_det: Array
    which: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Filtered:
    """Each state given the earlier targets (`predicted_*`), and given its own target too.

    `log_probs` (T,) are `log p(y_t | y_1, ..., y_{t−1})`; their sum is the log evidence.
    """

    predicted_means: Array
    predicted_covariances: Array
    means: Array
    covariances: Array
    log_probs: Array


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Each state given all targets; `crossed` (T − 1, D, D) are covariances of neighbours.

    `back` (T − 1, D, D) are the gains J of the smoother.
    """

    means: Array
    covariances: Array
    crossed: Array
    back: Array


def filtered(chain: Chain, y: Array) -> Filtered:
    """Kalman's filter over targets (T, P), NaN where missing: conjugate Bayes step by step."""
    seen = ~np.isnan(y)
    gains = _single(chain, seen[:, 0]) if y.shape[1] == 1 else _several(chain, seen)
    which, centred = gains.which, np.where(seen, y - chain.offset, 0.0)
    means = _means(chain, gains, centred)
    before = np.concatenate([chain.first_mean[None], means[:-1] @ chain.transition.T])
    errors = np.where(seen, centred - before @ chain.observation.T, 0.0)
    squares = np.einsum("ti,tij,tj->t", errors, gains.inverse[which], errors)
    log_probs = -0.5 * (squares + gains.log_det[which] + seen.sum(1) * _LOG_2PI)
    return Filtered(before, gains.predicted[which], means, gains.covariance[which], log_probs)


def _means(chain: Chain, gains: _Gains, centred: Array) -> Array:
    """`m_t = (I − K C) A m_{t−1} + K (y_t − d)`."""
    kept = chain.eye - gains.gain @ chain.observation
    learned = np.einsum("tij,tj->ti", gains.gain[gains.which], centred)
    moved = (kept @ chain.transition)[gains.which]
    moved[0] = kept[gains.which[0]]
    return affine(moved, (learned, chain.first_mean))[0]


def _single(chain: Chain, seen: NDArray[np.bool_]) -> _Gains:
    """Gains for one target a step, where S is a number: every step has its own."""
    row, noise = chain.observation[0], float(chain.noise[0, 0])
    begin = min(len(seen), max(_WIDE, 2 * chain.states, math.isqrt(len(seen))))
    before, now = [], chain.first_covariance
    for observed in seen[:begin].tolist():
        before.append(now)
        after = _after(now, row, noise) if observed else now
        now = symmetric(chain.transition @ after @ chain.transition.T) + chain.process
    predicted = np.stack(before)
    if begin < len(seen):
        later = covariances(chain.transition, chain.process, row, noise, seen[begin:], now)
        predicted = np.concatenate([predicted, later])
    return _of_single(chain, predicted, seen)


def _of_single(chain: Chain, predicted: Array, seen: NDArray[np.bool_]) -> _Gains:
    row, noise = chain.observation[0], float(chain.noise[0, 0])
    shared = predicted @ row
    variance = np.where(seen, shared @ row + noise, 1.0)
    gain = seen[:, None] * shared / variance[:, None]
    kept = chain.eye - gain[:, :, None] * row
    noise_part = noise * gain[:, :, None] * gain[:, None]
    after = symmetric(kept @ predicted @ np.swapaxes(kept, 1, 2)) + noise_part
    inverse, which = (seen / variance)[:, None, None], np.arange(len(seen))
    return _Gains(predicted, after, gain[:, :, None], inverse, np.log(variance), which)


def _after(now: Array, row: Array, noise: float) -> Array:
    """The covariance given a target, in Joseph's form, which keeps the digits of a wide belief."""
    shared = now @ row
    gain = shared / (row @ shared + noise)
    kept = np.eye(len(now)) - np.outer(gain, row)
    return kept @ now @ kept.T + noise * np.outer(gain, gain)


def _several(chain: Chain, seen: NDArray[np.bool_]) -> _Gains:
    """Gains for several targets a step, some of which may be missing."""
    which = np.empty(len(seen), dtype=np.intp)
    steps: list[tuple[Array, Array, Array, Array, float]] = []
    predicted, settled = chain.first_covariance, False
    same = np.append(False, (seen[1:] == seen[:-1]).all(1))
    for t, pattern in enumerate(seen):
        if not (same[t] and settled):
            steps.append((predicted, *_gain(chain, predicted, pattern)))
            ahead = chain.transition @ steps[-1][1] @ chain.transition.T + chain.process
            settled = t % _CHECK_EVERY == 0 and _alike(ahead, predicted)
            predicted = ahead
        which[t] = len(steps) - 1
    before, after, gain, inverse = (np.stack([step[k] for step in steps]) for k in range(4))
    return _Gains(before, after, gain, inverse, np.array([step[4] for step in steps]), which)


def _gain(
    chain: Chain, predicted: Array, pattern: NDArray[np.bool_]
) -> tuple[Array, Array, Array, float]:
    """P given the observed values, in Joseph's form, `K = P Cᵀ S⁻¹`, `S⁻¹` and `log |S|`."""
    targets = len(pattern)
    full_gain, full_inverse = np.zeros((chain.states, targets)), np.zeros((targets, targets))
    if not pattern.any():
        return predicted, full_gain, full_inverse, 0.0
    observation, noise = chain.observation[pattern], chain.noise[np.ix_(pattern, pattern)]
    factor = np.linalg.cholesky(observation @ predicted @ observation.T + noise)
    white = np.linalg.inv(factor)
    inverse = white.T @ white
    gain = predicted @ observation.T @ inverse
    kept = chain.eye - gain @ observation
    covariance = symmetric(kept @ predicted @ kept.T + gain @ noise @ gain.T)
    full_gain[:, pattern], full_inverse[np.ix_(pattern, pattern)] = gain, inverse
    return covariance, full_gain, full_inverse, 2.0 * float(np.log(np.diagonal(factor)).sum())


def smoothed(chain: Chain, forward: Filtered) -> Smoothed:
    """Rauch, Tung & Striebel's smoother: from the last step back to the first.

    `J = P Aᵀ P₊⁻¹`, `m ← m + J (m₊ − A m)`, `P ← (I − J A) P (I − J A)ᵀ + J (P₊ˢ + Q) Jᵀ`.
    """
    back = _back(chain, forward)
    transposed, kept = np.swapaxes(back, 1, 2), chain.eye - back @ chain.transition
    spread = kept @ forward.covariances[:-1] @ np.swapaxes(kept, 1, 2)
    spread = spread + back @ chain.process @ transposed
    shift = forward.means[:-1] - np.einsum("tij,tj->ti", back, forward.predicted_means[1:])
    last = forward.means[-1], forward.covariances[-1]
    means, covariances = _backwards(back, (shift, spread), last)
    covariances = symmetric(covariances)
    return Smoothed(means, covariances, covariances[1:] @ transposed, back)


def _backwards(factors: Array, added: Sequence[Array], last: Sequence[Array]) -> list[Array]:
    """Affine recursions from their last steps, which come out too, back to the first."""
    if not len(factors):
        return [one[None] for one in last]
    pairs = ((one[::-1], end) for one, end in zip(added, last, strict=True))
    found = affine(factors[::-1], *pairs)
    return [np.concatenate([one[::-1], end[None]]) for one, end in zip(found, last, strict=True)]


def _back(chain: Chain, forward: Filtered) -> Array:
    """The smoother's gains `J = P Aᵀ P₊⁻¹`, solved once for neighbours with equal matrices."""
    now, ahead = forward.covariances[:-1], forward.predicted_covariances[1:]
    if not len(now):
        return np.zeros((0, chain.states, chain.states))
    changed = _changes(now) | _changes(ahead)
    if not changed.all():
        now, ahead = now[changed], ahead[changed]
    gains = np.swapaxes(_solved(ahead, chain.transition @ now), 1, 2)
    return gains if changed.all() else gains[np.cumsum(changed) - 1]


def _changes(matrices: Array) -> NDArray[np.bool_]:
    """Where a matrix differs from the one before it; True at the first."""
    return np.append(True, (matrices[1:] != matrices[:-1]).any((1, 2)))


def _solved(matrices: Array, right: Array) -> Array:
    """`M⁻¹ B`; a pseudo-inverse where a state without noise makes M singular."""
    # For many small matrices torch is three times as fast as numpy.
    if torch.linalg.cholesky_ex(torch.from_numpy(matrices)).info.any():
        return np.linalg.pinv(matrices, hermitian=True, rcond=1e-13) @ right
    return torch.linalg.solve(*map(torch.from_numpy, (matrices, right))).numpy()


def _alike(new: Array, old: Array) -> bool:
    """Whether two covariances differ only by rounding, each entry on its own scale."""
    scale = np.sqrt(np.diagonal(new))
    return bool((np.abs(new - old) <= _SETTLED * np.outer(scale, scale)).all())


def symmetric(matrix: Array) -> Array:
    """The symmetric part, which removes the asymmetry of rounding."""
    return 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
