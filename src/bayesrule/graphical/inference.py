"""EM, variational Bayes and SVI: choices within one update, with the same fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How a belief about parameters θ moves: `λ ← (1 − ρ) λ + ρ (λ₀ + N/|B| Σ_{i∈B} λ̃_i)`.

    - `passes`: the largest number of passes over the data.
    - `tol`: the fit has converged when a pass changes the objective by less than this per row.
    - `at_mode`: whether messages are taken at the mode of q(θ), the delta method, with a flat
      prior (EM), or in expectation over q(θ) (VB).
    """

    passes: int = 200
    tol: float = 1e-6
    at_mode: ClassVar[bool] = False
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if self.passes < 1 or not self.tol >= 0.0:
            raise ValueError(
                f"passes are 1 or more and tol is 0 or more; got {self.passes} and {self.tol}."
            )

    def rate(self, step: int) -> float:
        """ρ of step number `step`, counted from 0."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class EM(Inference):
    """Expectation-maximisation: ρ = 1, the delta method for θ; Khan & Rue (2023), sec. 5.2."""

    at_mode: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class VB(Inference):
    """Variational Bayes, which is variational message passing: ρ = 1 at all nodes; sec. 5.3."""


@dataclass(frozen=True, kw_only=True)
class SVI(Inference):
    """Stochastic variational inference: ρ_t = (t + delay)^(−forgetting) on batches; sec. 5.3.

    `forgetting` lies in (0.5, 1] for the steps to converge; Hoffman et al. (2013), eq. 26.
    """

    passes: int = 20
    tol: float = 1e-5
    batch_size: int = 256  # type: ignore[misc]
    delay: float = 10.0
    forgetting: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 1 or not self.delay >= 0.0 or not 0.5 < self.forgetting <= 1.0:
            raise ValueError(
                "batch_size is 1 or more, delay 0 or more and forgetting in (0.5, 1]; got "
                f"{self.batch_size}, {self.delay} and {self.forgetting}."
            )

    def rate(self, step: int) -> float:
        return float(max(step + self.delay, 1.0) ** -self.forgetting)


@dataclass(frozen=True, kw_only=True)
class OnlineEM(SVI):
    """EM on batches: expected statistics are averaged with ρ_t < 1; Cappé & Moulines (2009)."""

    at_mode: ClassVar[bool] = True
