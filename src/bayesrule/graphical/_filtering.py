"""Filter and smoother of a linear-Gaussian chain.

Covariances depend on which values are missing, not on the values themselves. For one series all
recursions run in blocks; for several, covariances soon settle, and from then on all steps with the
same values missing share one set of matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bayesrule.graphical._blocks import Array, affine, covariances

_LOG_2PI = math.log(2.0 * math.pi)
_SETTLED = 1e-14
_WIDE = 24
"""So many steps at least are taken one by one, until a wide first belief has become narrow."""
_LOOKS = 8
"""Whether covariances have settled is looked at every so many steps."""


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
        """D, the numbers in a state."""
        return len(self.transition)

    @cached_property
    def eye(self) -> Array:
        """The identity of states."""
        return np.eye(self.states)


@dataclass(frozen=True, eq=False)
class _Gains:
    """What steps do to beliefs, whatever was observed: the U that differ, `which` (T,) of them.

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
    """Each state given the targets before it (`predicted_*`), and given its own too.

    `log_probs` (T,) are those of the targets given all before, and sum up to the evidence.
    """

    predicted_means: Array
    predicted_covariances: Array
    means: Array
    covariances: Array
    log_probs: Array


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Each state given all targets; `crossed` (T − 1, D, D) is the covariance with the one before.

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
    return affine(moved, learned, chain.first_mean)


def _single(chain: Chain, seen: NDArray[np.bool_]) -> _Gains:
    """Gains for one target a step, where S is a number: all steps have their own."""
    row, noise = chain.observation[0], float(chain.noise[0, 0])
    begin = min(len(seen), max(_WIDE, 2 * chain.states, math.isqrt(len(seen))))
    before, now = [], chain.first_covariance
    for known in seen[:begin].tolist():
        before.append(now)
        left = _after(now, row, noise) if known else now
        now = symmetric(chain.transition @ left @ chain.transition.T) + chain.process
    predicted = np.stack(before)
    if begin < len(seen):
        rest = covariances(chain.transition, chain.process, row, noise, seen[begin:], now)
        predicted = np.concatenate([predicted, rest])
    return _of_single(chain, predicted, seen)


def _of_single(chain: Chain, predicted: Array, seen: NDArray[np.bool_]) -> _Gains:
    row, noise = chain.observation[0], float(chain.noise[0, 0])
    shared = predicted @ row
    variance = np.where(seen, shared @ row + noise, 1.0)
    gain = seen[:, None] * shared / variance[:, None]
    left = chain.eye - gain[:, :, None] * row
    spread = noise * gain[:, :, None] * gain[:, None]
    after = symmetric(left @ predicted @ np.swapaxes(left, 1, 2)) + spread
    inverse, which = (seen / variance)[:, None, None], np.arange(len(seen))
    return _Gains(predicted, after, gain[:, :, None], inverse, np.log(variance), which)


def _after(now: Array, row: Array, noise: float) -> Array:
    """The covariance after a target as Joseph wrote it: a wide belief loses no digits."""
    shared = now @ row
    gain = shared / (row @ shared + noise)
    left = np.eye(len(now)) - np.outer(gain, row)
    return left @ now @ left.T + noise * np.outer(gain, gain)


def _several(chain: Chain, seen: NDArray[np.bool_]) -> _Gains:
    """Gains for several targets a step, of which some may be missing."""
    which = np.empty(len(seen), dtype=np.intp)
    found: list[tuple[Array, Array, Array, Array, float]] = []
    predicted, settled = chain.first_covariance, False
    same = np.append(False, (seen[1:] == seen[:-1]).all(1))
    for t, pattern in enumerate(seen):
        if not (same[t] and settled):
            found.append((predicted, *_gain(chain, predicted, pattern)))
            ahead = chain.transition @ found[-1][1] @ chain.transition.T + chain.process
            settled = t % _LOOKS == 0 and _alike(ahead, predicted)
            predicted = ahead
        which[t] = len(found) - 1
    before, after, gain, inverse = (np.stack([one[k] for one in found]) for k in range(4))
    return _Gains(before, after, gain, inverse, np.array([one[4] for one in found]), which)


def _gain(
    chain: Chain, predicted: Array, pattern: NDArray[np.bool_]
) -> tuple[Array, Array, Array, float]:
    """`S = C P Cᵀ + R`, `K = P Cᵀ S⁻¹` of the values that are there, P after them as Joseph did."""
    targets = len(pattern)
    whole_gain, whole = np.zeros((chain.states, targets)), np.zeros((targets, targets))
    if not pattern.any():
        return predicted, whole_gain, whole, 0.0
    observation, noise = chain.observation[pattern], chain.noise[np.ix_(pattern, pattern)]
    factor = np.linalg.cholesky(observation @ predicted @ observation.T + noise)
    white = np.linalg.inv(factor)
    inverse = white.T @ white
    gain = predicted @ observation.T @ inverse
    left = chain.eye - gain @ observation
    covariance = symmetric(left @ predicted @ left.T + gain @ noise @ gain.T)
    whole_gain[:, pattern], whole[np.ix_(pattern, pattern)] = gain, inverse
    return covariance, whole_gain, whole, 2.0 * float(np.log(np.diagonal(factor)).sum())


def smoothed(chain: Chain, found: Filtered) -> Smoothed:
    """Rauch, Tung & Striebel's smoother: from the last step back to the first.

    `J = P Aᵀ P₊⁻¹`, `m ← m + J (m₊ − A m)`, `P ← (I − J A) P (I − J A)ᵀ + J (P₊ˢ + Q) Jᵀ`.
    """
    back = _back(chain, found)
    turned, left = np.swapaxes(back, 1, 2), chain.eye - back @ chain.transition
    own = left @ found.covariances[:-1] @ np.swapaxes(left, 1, 2) + back @ chain.process @ turned
    fixed = found.means[:-1] - np.einsum("tij,tj->ti", back, found.predicted_means[1:])
    means = _backwards(back, fixed, found.means[-1])
    covariances = symmetric(_backwards(back, own, found.covariances[-1]))
    return Smoothed(means, covariances, covariances[1:] @ turned, back)


def _backwards(factors: Array, added: Array, last: Array) -> Array:
    """The affine recursion from the last step to the first, the last one with it."""
    if not len(factors):
        return last[None]
    return np.concatenate([affine(factors[::-1], added[::-1], last)[::-1], last[None]])


def _back(chain: Chain, found: Filtered) -> Array:
    """The gains `J = P Aᵀ P₊⁻¹` of the smoother, once for all steps that share one."""
    own, ahead = found.covariances[:-1], found.predicted_covariances[1:]
    if not len(own):
        return np.zeros((0, chain.states, chain.states))
    changed = _changes(own) | _changes(ahead)
    gains = np.swapaxes(_solved(ahead[changed], chain.transition @ own[changed]), 1, 2)
    return gains[np.cumsum(changed) - 1]


def _changes(matrices: Array) -> NDArray[np.bool_]:
    """Where a matrix is not the one before it; the first never is."""
    return np.append(True, (matrices[1:] != matrices[:-1]).any((1, 2)))


def _solved(matrices: Array, right: Array) -> Array:
    """`M⁻¹ B`; what a state without any noise leaves singular is inverted where it is not."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(matrices, hermitian=True, rcond=1e-13) @ right
    return np.linalg.solve(matrices, right).astype(np.float64, copy=False)


def _alike(new: Array, old: Array) -> bool:
    """Whether two covariances differ by rounding only, each entry for its own scale."""
    scale = np.sqrt(np.diagonal(new))
    return bool((np.abs(new - old) <= _SETTLED * np.outer(scale, scale)).all())


def symmetric(matrix: Array) -> Array:
    """The symmetric part, which rounding may have left a little."""
    return 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
