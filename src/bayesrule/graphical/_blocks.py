"""Recursions along a series of T steps, in blocks of about √T steps.

First the map from the start of a block to its end is computed, for all blocks at once. It gives the
starts, block after block. Then all blocks run at once from their starts. That is 3 √T steps of
Python in place of T.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def affine(factors: Array, *given: tuple[Array, Array]) -> list[Array]:
    """`x_t = F_t x_{t−1} + u_t` for vectors, `F_t X_{t−1} F_tᵀ + U_t` for matrices, (T, ...).

    `factors` (T, D, D). Each pair has `added`, (T, D) or (T, D, D), and the value before the first
    step; the recursions of all pairs share the products of factors.
    """
    blocks = _in_blocks(factors, np.eye(factors.shape[1]))
    products = np.broadcast_to(np.eye(factors.shape[1]), blocks[:, 0].shape)
    for k in range(blocks.shape[1]):
        products = blocks[:, k] @ products
    return [_one_affine(blocks, products, *pair) for pair in given]


def _one_affine(factors: Array, products: Array, added: Array, first: Array) -> Array:
    are_matrices, steps = added.ndim == 3, len(added)
    added = _in_blocks(added, np.zeros_like(added[0]))
    added = added if are_matrices else added[..., None]
    start = first if are_matrices else first[:, None]
    offsets = added[:, 0]
    for k in range(1, factors.shape[1]):
        offsets = _apply(factors[:, k], offsets, are_matrices) + added[:, k]
    starts = np.empty_like(offsets)
    for block in range(len(starts)):
        starts[block] = start
        start = _apply(products[block], start, are_matrices) + offsets[block]
    values = np.empty_like(added)
    for k in range(factors.shape[1]):
        starts = _apply(factors[:, k], starts, are_matrices) + added[:, k]
        values[:, k] = starts
    flat = values.reshape(-1, *values.shape[2:])[:steps]
    return flat if are_matrices else flat[..., 0]


def _apply(factor: Array, x: Array, are_matrices: bool) -> Array:
    return factor @ x @ _transposed(factor) if are_matrices else factor @ x


def covariances(
    transition: Array, process: Array, row: Array, noise: float, seen: NDArray[np.bool_],
    first: Array,
) -> Array:  # fmt: skip
    """`P_{t+1} = A (P_t⁻¹ + c cᵀ / r)⁻¹ Aᵀ + Q`: predicted covariances, one target, (T, D, D).

    A block maps P to `Ã P (I + H̃ P)⁻¹ Ãᵀ + Q̃`. Q̃ is the prediction of a filter that knows the
    block's first state, Ã propagates an error in that state, and H̃ is the information of the
    block's targets about it. Särkkä & García-Fernández (2021), sec. III. Steps without a target
    only predict.
    """
    observed = _in_blocks(seen.astype(np.float64), np.zeros(()))
    size = len(observed), *first.shape
    eye, offset = np.eye(len(first)), np.zeros(size)
    slope, information = np.broadcast_to(eye, size), np.zeros(size)
    for k in range(observed.shape[1]):
        step = _Step.of(offset, row, noise, observed[:, k], transition)
        along = row @ slope
        information += (step.weight[:, None] * along)[:, :, None] * along[:, None]
        slope = step.kept @ slope
        offset = step.next(offset, process)
    starts = np.empty(size)
    for block in range(len(starts)):
        starts[block] = first
        inner = np.linalg.solve(eye + first @ information[block], first)
        first = _symmetric(slope[block] @ inner @ slope[block].T + offset[block])
    predicted = np.empty((*observed.shape, *first.shape))
    for k in range(observed.shape[1]):
        predicted[:, k] = starts
        starts = _Step.of(starts, row, noise, observed[:, k], transition).next(starts, process)
    return _symmetric(predicted.reshape(-1, *first.shape)[: len(seen)])


class _Step(NamedTuple):
    """A step of all blocks at once: conditioned on the target in Joseph's form, then moved.

    `weight` (B,) is `1 / s`, 0 where there is no target; `kept = A (I − K cᵀ)` (B, D, D) is what
    becomes of an error, and `noise` (B, D) is `A K √r`.
    """

    weight: Array
    kept: Array
    noise: Array

    @classmethod
    def of(cls, now: Array, row: Array, noise: float, observed: Array, transition: Array) -> _Step:
        shared = now @ row
        weight = observed / (shared @ row + noise)
        pushed = (weight[:, None] * shared) @ transition.T
        return cls(weight, transition - pushed[:, :, None] * row, math.sqrt(noise) * pushed)

    def next(self, now: Array, process: Array) -> Array:
        """The covariances one step later."""
        moved = self.kept @ now @ _transposed(self.kept)
        moved += self.noise[:, :, None] * self.noise[:, None]
        moved += process
        return moved


def _in_blocks(values: Array, rest: Array) -> Array:
    """(T, ...) as blocks (B, L, ...), the last one padded with `rest`."""
    length = max(1, math.isqrt(len(values)))
    missing = -len(values) % length
    padded = np.concatenate([values, np.broadcast_to(rest, (missing, *values.shape[1:]))])
    return padded.reshape(-1, length, *values.shape[1:])


def _transposed(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)


def _symmetric(matrices: Array) -> Array:
    return 0.5 * (matrices + _transposed(matrices))
