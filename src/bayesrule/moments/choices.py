"""How Gaussians pass what is not linear."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activations:
    """How Gaussians pass scalar functions; `MomentMatched()` or `LocallyLinear()`.

    In a normalising layer each output depends on all inputs through their mean and variance. The
    way back counts that in, to first order; with `constant_statistics` it takes both as given, as
    TAGI was first written down. Deep residual nets then hardly learn: what they ask for is lost
    in the normalisation, and weights grow without effect.
    """

    constant_statistics: bool = False


@dataclass(frozen=True)
class LocallyLinear(Activations):
    """`φ(z)` as its tangent at the mean: `μ = φ(m)`, `σ² = φ'(m)² s`."""


@dataclass(frozen=True)
class MomentMatched(Activations):
    """`φ(z)` as the Gaussian of the same mean and variance, and the same covariance with z."""
