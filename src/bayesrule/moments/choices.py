"""How Gaussians pass scalar functions."""

from __future__ import annotations

from dataclasses import dataclass


class Activations:
    """How Gaussians pass scalar functions; `MomentMatched()` or `LocallyLinear()`."""


@dataclass(frozen=True)
class LocallyLinear(Activations):
    """`φ(z)` as its tangent at the mean: `μ = φ(m)`, `σ² = φ'(m)² s`."""


@dataclass(frozen=True)
class MomentMatched(Activations):
    """`φ(z)` as the Gaussian of the same mean and variance, and the same covariance with z."""
