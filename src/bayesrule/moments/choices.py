"""How Gaussians pass functions that are not linear."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activations:
    """How Gaussians pass elementwise functions; `MomentMatched()` or `LocallyLinear()`.

    In a normalising layer each output depends on all inputs through their mean and variance.
    Innovations include that to first order. With `constant_statistics` they take both as constants,
    as in the first papers on TAGI; deep residual nets then hardly learn, since much of what their
    outputs ask for is lost in the normalisation, and weights grow without effect.
    """

    constant_statistics: bool = False


@dataclass(frozen=True)
class LocallyLinear(Activations):
    """`φ(z)` as its tangent at the mean: `μ = φ(m)`, `σ² = φ'(m)² s`."""


@dataclass(frozen=True)
class MomentMatched(Activations):
    """`φ(z)` as the Gaussian of the same mean and variance, and the same covariance with z."""
