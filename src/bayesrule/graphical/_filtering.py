"""Filter and smoother of a linear-Gaussian chain; what the data do not touch is computed once.

Covariances depend on which values are missing, not on the values themselves. They soon settle, and
from then on all steps with the same values missing share one set of matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LOG_2PI = math.log(2.0 * math.pi)
_SETTLED = 1e-14
_WIDE = 1e6
"""Beliefs so many times as wide as the noise lose digits where their difference is taken."""
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
    """`m_t = (I − K C) A m_{t−1} + K (y_t − d)`, the only part that goes step by step."""
    kept = chain.eye - gains.gain @ chain.observation
    moved = list(kept @ chain.transition)
    learned = np.einsum("tij,tj->ti", gains.gain[gains.which], centred)
    means = np.empty((len(centred), chain.states))
    means[0] = m = kept[gains.which[0]] @ chain.first_mean + learned[0]
    for t, number in enumerate(gains.which[1:].tolist(), start=1):
        means[t] = m = moved[number] @ m + learned[t]
    return means


def _single(chain: Chain, seen: NDArray[np.bool_]) -> _Gains:
    """Gains for one target a step, where S is a number: as little as can be done step by step."""
    row, noise = chain.observation[0], float(chain.noise[0, 0])
    forth, back, process = chain.transition, chain.transition.T, chain.process
    which, before, after, there = [], [], [], []
    now, settled, former = chain.first_covariance, False, None
    for t, known in enumerate(seen.tolist()):
        if not (settled and known == former):
            before.append(now)
            there.append(known)
            left = _after(now, row, noise) if known else now
            after.append(left)
            ahead = forth @ left @ back + process
            settled = t % _LOOKS == 0 and _alike(ahead, now)
            now, former = ahead, known
        which.append(len(before) - 1)
    predicted, known = symmetric(np.stack(before)), np.array(there)
    shared = predicted @ row
    variance = np.where(known, shared @ row + noise, 1.0)
    gain, inverse = known[:, None] * shared / variance[:, None], known / variance
    numbers: tuple[Array, NDArray[np.intp]] = np.log(variance), np.array(which, dtype=np.intp)
    return _Gains(
        predicted, symmetric(np.stack(after)), gain[:, :, None], inverse[:, None, None], *numbers
    )


def _after(now: Array, row: Array, noise: float) -> Array:
    """`P − P c cᵀ P / s`; as Joseph wrote it where little would be left of a wide belief."""
    shared = now @ row
    gain = shared / (row @ shared + noise)
    if now.trace() < _WIDE * noise:
        return now - np.multiply.outer(gain, shared)
    left = np.eye(len(now)) - np.outer(gain, row)
    return symmetric(left @ now @ left.T + noise * np.outer(gain, gain))


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
    means, covariances = found.means.copy(), found.covariances.copy()
    moved = found.predicted_means
    for t in range(len(means) - 2, -1, -1):
        means[t] += back[t] @ (means[t + 1] - moved[t + 1])
    turned = np.swapaxes(back, 1, 2)
    left = np.eye(chain.states) - back @ chain.transition
    own = left @ covariances[:-1] @ np.swapaxes(left, 1, 2) + back @ chain.process @ turned
    # Where nothing changes from step to step any more, neither does the smoothed covariance.
    still = np.append(~(_changes(own) | _changes(back))[1:], False)
    settled = False
    for t in range(len(means) - 2, -1, -1):
        if settled and still[t]:
            covariances[t] = covariances[t + 1]
            continue
        covariances[t] = own[t] + back[t] @ covariances[t + 1] @ turned[t]
        settled = t % _LOOKS == 0 and _alike(covariances[t], covariances[t + 1])
    covariances = symmetric(covariances)
    return Smoothed(means, covariances, covariances[1:] @ turned, back)


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
