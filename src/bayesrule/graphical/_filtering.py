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
class _Gain:
    """What one step does to the belief, whatever was observed."""

    predicted: Array
    covariance: Array
    gain: Array
    inverse: Array
    log_det: float


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
    which, gains = _gains(chain, seen)
    predicted = np.stack([one.predicted for one in gains])[which]
    covariances = np.stack([one.covariance for one in gains])[which]
    centred = np.where(seen, y - chain.offset, 0.0)
    means = _means(chain, gains, which, centred)
    before = np.concatenate([chain.first_mean[None], means[:-1] @ chain.transition.T])
    errors = np.where(seen, centred - before @ chain.observation.T, 0.0)
    inverses = np.stack([one.inverse for one in gains])[which]
    squares = np.einsum("ti,tij,tj->t", errors, inverses, errors)
    log_dets = np.array([one.log_det for one in gains])[which]
    log_probs = -0.5 * (squares + log_dets + seen.sum(1) * _LOG_2PI)
    return Filtered(before, predicted, means, covariances, log_probs)


def _means(chain: Chain, gains: list[_Gain], which: NDArray[np.intp], centred: Array) -> Array:
    """`m_t = (I − K C) A m_{t−1} + K (y_t − d)`, the only part that goes step by step."""
    eye = np.eye(chain.states)
    kept = [(eye - one.gain @ chain.observation) for one in gains]
    moved = [one @ chain.transition for one in kept]
    learned = np.einsum("tij,tj->ti", np.stack([one.gain for one in gains])[which], centred)
    means = np.empty((len(centred), chain.states))
    means[0] = m = kept[which[0]] @ chain.first_mean + learned[0]
    for t, number in enumerate(which[1:].tolist(), start=1):
        means[t] = m = moved[number] @ m + learned[t]
    return means


def _gains(chain: Chain, seen: NDArray[np.bool_]) -> tuple[NDArray[np.intp], list[_Gain]]:
    """The gains that differ, and which of them each step takes."""
    which = np.empty(len(seen), dtype=np.intp)
    found: list[_Gain] = []
    predicted, settled = chain.first_covariance, False
    same = np.concatenate([[False], (seen[1:] == seen[:-1]).all(1)])
    for t, pattern in enumerate(seen):
        if not (same[t] and settled):
            found.append(_gain(chain, predicted, pattern))
            ahead = chain.transition @ found[-1].covariance @ chain.transition.T + chain.process
            settled = t % _LOOKS == 0 and _alike(ahead, predicted)
            predicted = ahead
        which[t] = len(found) - 1
    return which, found


def _gain(chain: Chain, predicted: Array, pattern: NDArray[np.bool_]) -> _Gain:
    """`S = C P Cᵀ + R`, `K = P Cᵀ S⁻¹` of the values that are there, P after them as Joseph did."""
    states, targets = chain.states, len(pattern)
    if targets == 1 and pattern[0]:
        return _single(chain, predicted)
    if not pattern.any():
        nothing = np.zeros((states, targets)), np.zeros((targets, targets))
        return _Gain(predicted, predicted, *nothing, 0.0)
    observation, noise = chain.observation[pattern], chain.noise[np.ix_(pattern, pattern)]
    factor = np.linalg.cholesky(observation @ predicted @ observation.T + noise)
    white = np.linalg.inv(factor)
    inverse = white.T @ white
    gain = predicted @ observation.T @ inverse
    left = np.eye(states) - gain @ observation
    covariance = symmetric(left @ predicted @ left.T + gain @ noise @ gain.T)
    whole_gain, whole = np.zeros((states, targets)), np.zeros((targets, targets))
    whole_gain[:, pattern], whole[np.ix_(pattern, pattern)] = gain, inverse
    log_det = 2.0 * float(np.log(np.diagonal(factor)).sum())
    return _Gain(predicted, covariance, whole_gain, whole, log_det)


def _single(chain: Chain, predicted: Array) -> _Gain:
    """The same for one value, where S is a number."""
    shared = predicted @ chain.observation.T
    variance = chain.observation @ shared + chain.noise
    gain = shared / variance
    left = chain.eye - gain @ chain.observation
    covariance = symmetric(left @ predicted @ left.T + gain @ (chain.noise * gain.T))
    return _Gain(predicted, covariance, gain, 1.0 / variance, math.log(variance[0, 0]))


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
