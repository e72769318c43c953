"""Momentum: an average of gradients, a velocity, or a heavy ball in natural parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Average:
    """The exponential average of the gradient, without bias (Adam, IVON).

    The prior's gradient at the mean is known exactly and stays outside the average; that at drawn
    weights is averaged with the loss's.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        _check_decay(self.decay)


@dataclass(frozen=True)
class Velocity:
    """`v ← decay v + d` of the preconditioned gradients d (K-FAC).

    A lasting direction is followed `1 / (1 − decay)` times as fast as without.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        _check_decay(self.decay)


@dataclass(frozen=True)
class HeavyBall:
    """`λ_{t+1} = λ_t − ρ∇ + γ(λ_t − λ_{t−1})` in natural parameters.

    Khan & Rue (2023), sec. 4.3; with the rule's `learning_rate` equal to its `rate` ρ.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        _check_decay(self.decay)


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"A momentum's decay lies in [0, 1), got {decay}.")


Momentum = Average | Velocity | HeavyBall
"""Any of them."""
