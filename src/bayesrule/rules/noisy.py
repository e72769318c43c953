"""Noisy natural gradients: steps at drawn weights, with a curvature that is averaged on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule import tree, vectors
from bayesrule.curvature import Curvature, NoCurvature
from bayesrule.expectations import AtMean, Draws, Expectation
from bayesrule.matrices import Diagonal, DiagonalMatrix, Matrix, Structure
from bayesrule.posteriors import Family, Gaussian, GaussianFamily
from bayesrule.rules._base import Memory, Rule
from bayesrule.rules.momentum import Average, Velocity
from bayesrule.schedules import Schedule, as_schedule
from bayesrule.types import Derivatives, Params


@dataclass(frozen=True)
class Noisy(Rule):
    """`F ← (1−ρ) F + ρ E[∇²ℓ]`, `S = F + δI`, then `m ← m − α S⁻¹ E[∇ℓ(w) + δw]`, w drawn.

    Zhang et al. (2018), eq. 9, with δ the prior precision, α `learning_rate`, ρ `rate`. Unlike
    `Natural`, the prior's gradient is that at the drawn weights, and averaged with the loss's.

    - `momentum`: `Average(decay)` of the gradients, `Velocity(decay)` of the steps, or None.
    - `square_root`: the mean is preconditioned by `N (√(F/N) + δ/N)` instead of S (noisy Adam,
      algorithm 1); with `damped_root` by `N √(F/N + δ/N)`. For `Diagonal()`.
    - `damping`: added to F/N where the mean is preconditioned; the belief does not see it.
    - `kl_clip`: c in `ν = min(1, √(c / (α² gᵀS⁻¹g / N)))`, by which a step is multiplied: it then
      moves the predictions by about c nats for each datum at the most.
    - `stats_every`: the curvature is looked at in each n-th step only, from the first one on.
    - `inverse_every`: S follows F in each n-th step only, so that its roots are kept in between.
    - `prior_at_draws`: with False the prior's gradient is that at the mean, `δm`, as in VOGN.
    """

    learning_rate: float | Schedule = 1e-2
    rate: float | Schedule = 1e-3
    momentum: Average | Velocity | None = None
    square_root: bool = False
    damped_root: bool = False
    damping: float = 0.0
    kl_clip: float = math.inf
    stats_every: int = 1
    inverse_every: int = 1
    prior_at_draws: bool = True

    def __post_init__(self) -> None:
        for name in ("learning_rate", "rate"):
            value = getattr(self, name)
            if not callable(value) and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a number that is not negative, got {value}.")
        for name in ("stats_every", "inverse_every"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} is a number of steps, at least 1, got {value!r}.")
        if not (self.damping >= 0 and self.kl_clip > 0):
            raise ValueError(
                "damping must not be negative and kl_clip must be positive, got "
                f"damping={self.damping} and kl_clip={self.kl_clip}."
            )
        if self.damped_root and not self.square_root:
            raise ValueError("damped_root says which root is taken: add square_root=True.")

    @property
    def needs_weights(self) -> bool:  # type: ignore[override]
        """The prior's gradient at the drawn weights has to know them."""
        return self.prior_at_draws

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        kind = type(curvature).__name__
        if not isinstance(family, GaussianFamily):
            raise TypeError(
                f"Noisy natural gradients need a Gaussian, got {type(family).__name__}; use "
                "GaussianFamily(Kronecker()) or a rule that follows the ELBO's gradient."
            )
        if not isinstance(expectation, Draws | AtMean):
            raise ValueError(
                "Noisy natural gradients look at weights: use Draws(1), got "
                f"{type(expectation).__name__}()."
            )
        if not curvature.gives_curvature or curvature.may_be_negative:
            raise ValueError(
                f"{kind}() gives no curvature that is never negative; use Fisher(), GGN(), "
                "PerExample() or SquaredGradient(), or Natural(retract=True)."
            )
        if self.square_root and not isinstance(family.structure, Diagonal):
            raise ValueError(
                "square_root=True takes the root of a diagonal: use Diagonal(), got "
                f"{type(family.structure).__name__}()."
            )

    def structure(self, family: Family) -> Structure:
        assert isinstance(family, GaussianFamily)
        return family.structure

    def curvature_at(self, given: Curvature, step: int) -> Curvature:
        return NoCurvature() if step % self.stats_every else given

    def copied(self, posterior: Gaussian, memory: Memory) -> tuple[Gaussian, Memory]:  # type: ignore[override]
        # A step changes no precision in place, so its roots can be kept.
        mean = {name: value.clone() for name, value in posterior.mean.items()}
        shared = {k: v for k, v in memory.items() if k == "preconditioner"}
        return replace(posterior, mean=mean), tree.map_tensors(memory, torch.clone) | shared

    def init(self, family: Family, params: Params, weight: float) -> Memory:
        assert isinstance(family, GaussianFamily)
        memory: Memory = {"curvature": family.first_curvature(params, weight)}
        if self.momentum is not None:
            memory["momentum"] = vectors.zeros_like(params)
        if self._damped_apart:
            # A place to load one into; the first step makes it.
            memory["preconditioner"] = family.first_curvature(params, weight)
        return memory

    @property
    def _damped_apart(self) -> bool:
        """Whether the mean is preconditioned by another matrix than the belief's precision."""
        return self.damping > 0 and not self.square_root

    def step(
        self,
        posterior: Gaussian,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Gaussian, Memory]:
        memory, weight = dict(memory), derivatives.weight
        if derivatives.curvature is not None:
            rate = as_schedule(self.rate)(step)
            memory["curvature"] = memory["curvature"].lerp_(derivatives.curvature, rate)
        precision = posterior.precision
        if step % self.inverse_every == 0:
            precision = memory["curvature"].damped(prior_precision)
            if self._damped_apart:
                memory["preconditioner"] = precision.damped(weight * self.damping)
        where = derivatives.weights if self.prior_at_draws else posterior.mean
        assert where is not None
        gradient = vectors.add(derivatives.gradient, where, alpha=prior_precision)
        divisor = self._divisor(precision, prior_precision, weight, memory)
        direction, rate = self._direction(divisor, gradient, weight, memory, step)
        return Gaussian(vectors.add_(posterior.mean, direction, alpha=-rate), precision), memory

    def _divisor(
        self, precision: Matrix, prior_precision: float, weight: float, memory: Memory
    ) -> Matrix:
        """What the mean's gradient is divided by."""
        if not self.square_root:
            return memory["preconditioner"] if self._damped_apart else precision
        more = prior_precision + weight * self.damping
        # N √(F/N + γ) = √(N (F + Nγ)), and N (√(F/N) + γ) = √(N F) + Nγ.
        values = memory["curvature"].diagonal()
        inside = vectors.shift(values, more) if self.damped_root else values
        root = vectors.scale_(vectors.sqrt(inside), weight**0.5)
        return DiagonalMatrix(root if self.damped_root else vectors.shift_(root, more))

    def _direction(
        self, divisor: Matrix, gradient: Params, weight: float, memory: Memory, step: int
    ) -> tuple[Params, float]:
        """Where the mean goes, as a new vector times a number; `memory` moves."""
        rate, seen = as_schedule(self.learning_rate)(step), 1.0
        if isinstance(self.momentum, Average):
            decay = self.momentum.decay
            gradient = vectors.lerp_(memory["momentum"], gradient, 1.0 - decay)
            # The average began at zero: without bias it is larger by 1 / seen.
            seen = 1.0 - decay ** (step + 1)
        direction = divisor.solve(gradient)
        rate = rate / seen
        if math.isfinite(self.kl_clip):
            moved = vectors.dot(gradient, direction) * (rate**2 / weight)
            vectors.scale_(direction, _at_most_one(self.kl_clip / moved))
        if isinstance(self.momentum, Velocity):
            velocity = vectors.scale_(memory["momentum"], self.momentum.decay)
            direction = vectors.add_(velocity, direction)
        return direction, rate


def _at_most_one(square: Tensor) -> Tensor:
    return square.sqrt().clamp_max(1.0)
