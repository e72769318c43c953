"""Momentum: an average of gradients, a velocity, or a heavy ball in natural parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Momentum:
    """A memory of earlier steps, of which each step keeps the share `decay`."""

    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"A momentum's decay lies in [0, 1), got {self.decay}.")


class Average(Momentum):
    """The exponential average of the gradient, corrected for its bias (Adam, IVON).

    The prior's gradient at the mean is known exactly and stays outside of the average; at drawn
    weights, it is averaged with the loss's.
    """


class Velocity(Momentum):
    """`v ← decay v + d` for the preconditioned gradients d (K-FAC).

    A constant direction is followed `1 / (1 − decay)` times as fast as without momentum.
    """


class HeavyBall(Momentum):
    """`λ_{t+1} = λ_t − ρ∇ + γ(λ_t − λ_{t−1})` in natural parameters.

    Khan & Rue (2023), sec. 4.3; with the rule's `learning_rate` equal to its `rate` ρ.
    """
