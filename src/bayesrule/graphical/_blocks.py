"""Recursions along a series in blocks of about √T steps, side by side.

What a block does to any start is worked out for all blocks at once; then one goes from block to
block, and then through all blocks at once again: 3 √T steps of Python in place of T.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def affine(factors: Array, added: Array, first: Array) -> Array:
    """`x_t = F_t x_{t−1} + u_t` for vectors, `F_t X_{t−1} F_tᵀ + U_t` for matrices, (T, ...).

    `factors` (T, D, D), `added` (T, D) or (T, D, D), `first` what there is before the first step.
    """
    both, steps = added.ndim == 3, len(added)
    factors, added = _cut(factors, np.eye(len(first))), _cut(added, np.zeros_like(added[0]))
    added = added if both else added[..., None]
    start = first if both else first[:, None]
    whole = np.broadcast_to(np.eye(len(start)), factors[:, 0].shape)
    moved = np.zeros_like(added[:, 0])
    for k in range(factors.shape[1]):
        whole = factors[:, k] @ whole
        moved = _applied(factors[:, k], moved, both) + added[:, k]
    starts = np.empty_like(moved)
    for block in range(len(starts)):
        starts[block] = start
        start = _applied(whole[block], start, both) + moved[block]
    found = np.empty_like(added)
    for k in range(factors.shape[1]):
        starts = _applied(factors[:, k], starts, both) + added[:, k]
        found[:, k] = starts
    flat = found.reshape(-1, *found.shape[2:])[:steps]
    return flat if both else flat[..., 0]


def _applied(factor: Array, x: Array, both: bool) -> Array:
    return factor @ x @ _turned(factor) if both else factor @ x


def covariances(
    transition: Array, process: Array, row: Array, noise: float, seen: NDArray[np.bool_],
    first: Array,
) -> Array:  # fmt: skip
    """`P_{t+1} = A (P_t⁻¹ + c cᵀ / r)⁻¹ Aᵀ + Q`, what a filter of one target predicts, (T, D, D).

    A block turns P into `Ã P (I + H̃ P)⁻¹ Ãᵀ + Q̃`: Q̃ is what a filter predicts that knows the
    block's first state, Ã how its errors go with this state, and H̃ what the targets say of it.
    Särkkä & García-Fernández (2021), sec. III. Steps without a target only move.
    """
    known = _cut(seen.astype(np.float64), np.zeros(()))
    size = len(known), *first.shape
    eye, left = np.eye(len(first)), np.zeros(size)
    through, told = np.broadcast_to(eye, size), np.zeros(size)
    for k in range(known.shape[1]):
        gain, weight = _gain(left, row, noise, known[:, k])
        along = row @ through
        told = told + weight[:, None, None] * along[:, :, None] * along[:, None]
        through = transition @ (through - gain[:, :, None] * along[:, None])
        left = _moved(left, gain, row, noise, transition, process)
    starts = np.empty(size)
    for block in range(len(starts)):
        starts[block] = first
        inner = np.linalg.solve(eye + first @ told[block], first)
        first = _symmetric(through[block] @ inner @ through[block].T + left[block])
    found = np.empty((*known.shape, *first.shape))
    for k in range(known.shape[1]):
        found[:, k] = starts
        gain, _ = _gain(starts, row, noise, known[:, k])
        starts = _moved(starts, gain, row, noise, transition, process)
    return found.reshape(-1, *first.shape)[: len(seen)]


def _gain(now: Array, row: Array, noise: float, known: Array) -> tuple[Array, Array]:
    """`P c / s` and `1 / s`, 0 where there is no target, of all blocks."""
    shared = now @ row
    weight = known / (shared @ row + noise)
    return weight[:, None] * shared, weight


def _moved(
    now: Array, gain: Array, row: Array, noise: float, transition: Array, process: Array
) -> Array:
    """The covariance after a target, as Joseph wrote it, and one step on."""
    left = transition - (transition @ gain[:, :, None]) * row
    pushed = gain @ transition.T
    told = noise * pushed[:, :, None] * pushed[:, None]
    return _symmetric(left @ now @ _turned(left)) + told + process


def _cut(values: Array, rest: Array) -> Array:
    """(T, ...) as blocks (B, L, ...), the last one filled up."""
    length = max(1, math.isqrt(len(values)))
    short = -len(values) % length
    filled = np.concatenate([values, np.broadcast_to(rest, (short, *values.shape[1:]))])
    return filled.reshape(-1, length, *values.shape[1:])


def _turned(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)


def _symmetric(matrices: Array) -> Array:
    return 0.5 * (matrices + _turned(matrices))
