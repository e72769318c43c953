"""The Bayesian learning rule for Gaussians: natural gradients of the variational objective."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import (
    BlockTridiagonal,
    Dense,
    Diagonal,
    DiagonalMatrix,
    Kronecker,
    LowRank,
    Matrix,
    Structure,
    Subset,
)
from bayesrule.posteriors import Family, Gaussian, GaussianFamily
from bayesrule.rules._base import Memory, Rule
from bayesrule.rules.momentum import Average, HeavyBall
from bayesrule.schedules import Schedule, as_schedule
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Params


@dataclass(frozen=True)
class Natural(Rule):
    """`S ← (1−ρ) S + ρ (E[∇²ℓ] + δI)`, then `m ← m − α S⁻¹ (E[∇ℓ] + δm)`.

    Khan & Rue (2023), eqs 3 and 4, with δ the prior precision, α `learning_rate`, ρ `rate`. The
    average of the curvature is kept without the prior, `S = F + δI`.

    - `momentum`: `Average(decay)`, `HeavyBall(decay)` or None.
    - `square_root`: the mean is preconditioned by `√F` instead of S, as in RMSprop and Adam:
      `m ← m − α (ĝ + δm/N) / (√(F/N) + δ/N + epsilon)`; F is then diagonal. The prior's δ/N, as
      in noisy Adam, keeps steps bounded where no gradient arrives.
    - `debias`: the average of the curvature starts at zero and is corrected for it (Adam).
    - `retract`: a step after which S is positive although the curvature may be negative.
    - `damping`: added to F/N where the mean is preconditioned; the belief does not see it.
    - `clip`: no entry of the preconditioned gradient is larger.
    - `fixed_precision`: only the mean moves.
    """

    learning_rate: float | Schedule = 1e-3
    rate: float | Schedule = 1e-3
    momentum: Average | HeavyBall | None = None
    square_root: bool = False
    epsilon: float = 1e-8
    debias: bool = False
    retract: bool = False
    damping: float = 0.0
    clip: float = math.inf
    fixed_precision: bool = False

    def __post_init__(self) -> None:
        for name in ("learning_rate", "rate"):
            value = getattr(self, name)
            if not callable(value) and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a number that is not negative, got {value}.")
        if self.damping < 0 or self.epsilon < 0 or not self.clip > 0:
            raise ValueError("damping and epsilon must not be negative, clip must be positive.")

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        kind = type(curvature).__name__
        if not isinstance(family, GaussianFamily):
            raise TypeError(
                f"The natural-gradient rule needs a Gaussian, got {type(family).__name__}; "
                "use GaussianFamily(Diagonal()) or a rule that follows the ELBO's gradient."
            )
        if curvature.needs_draws and not expectation.random:
            raise ValueError(
                f"{kind}() needs weight draws, got {type(expectation).__name__}(); use Draws(1)."
            )
        moving = self.square_root or not self.fixed_precision
        if moving and not curvature.gives_curvature:
            raise ValueError(
                f"{kind}() gives nothing to move the precision with; use PerExample(), Fisher(), "
                "GGN() or Price(), or Natural(fixed_precision=True)."
            )
        risky = curvature.needs_draws or not isinstance(_innermost(family.structure), Dense)
        if curvature.may_be_negative and risky and not (self.retract or self.fixed_precision):
            # A full matrix says so itself when it is not positive; Newton's method counts on it.
            raise ValueError(f"{kind}() may be negative; use Natural(retract=True).")
        if self.square_root and curvature.may_be_negative:
            raise ValueError(
                f"{kind}() may be negative and then has no square root; use SquaredGradient(), "
                "PerExample(), Fisher() or GGN(), or Natural(square_root=False)."
            )
        structure = _innermost(family.structure)
        if isinstance(structure, LowRank | Kronecker | BlockTridiagonal) and (
            curvature.needs_draws or isinstance(self.momentum, HeavyBall)
        ):
            raise ValueError(
                f"{type(structure).__name__}() can only be averaged over positive curvature: use "
                "PerExample(), Fisher() or GGN(), and Average() instead of HeavyBall()."
            )

    def structure(self, family: Family) -> Structure:
        assert isinstance(family, GaussianFamily)
        return Diagonal() if self.square_root else family.structure

    def init(self, family: Family, params: Params, weight: float) -> Memory:
        assert isinstance(family, GaussianFamily)
        memory: Memory = {}
        if self.square_root or not self.fixed_precision:
            start = 0.0 if self.square_root else weight * family.curvature
            memory["curvature"] = self.structure(family).identity(params, start)
        if isinstance(self.momentum, Average):
            memory["gradient"] = vectors.zeros_like(params)
        if isinstance(self.momentum, HeavyBall):
            memory["previous_mean"] = {k: v.clone() for k, v in params.items()}
            memory["previous_curvature"] = memory.get("curvature")
        return memory

    def step(
        self,
        posterior: Gaussian,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Gaussian, Memory]:
        memory = dict(memory)
        precision = self._precision(posterior, derivatives, prior_precision, memory, step)
        gradient, factor = self._gradient(posterior, derivatives, prior_precision, memory, step)
        weight, rate = derivatives.weight, factor * as_schedule(self.learning_rate)(step)
        divisor = self._preconditioner(precision, prior_precision, weight, memory, step)
        if math.isfinite(self.clip) or isinstance(self.momentum, HeavyBall):
            direction = vectors.clamp_(divisor.solve_(gradient), self.clip / factor)
            mean = vectors.add(posterior.mean, direction, alpha=-rate)
            if isinstance(self.momentum, HeavyBall):
                self._roll(mean, posterior, precision, prior_precision, memory)
        else:
            mean = divisor.descend_(posterior.mean, gradient, rate)
        return Gaussian(mean, precision), memory

    def _precision(
        self,
        posterior: Gaussian,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> Matrix:
        """The next precision; the average of the curvature moves in `memory`."""
        if derivatives.curvature is None or "curvature" not in memory:
            return posterior.precision
        rate, old = as_schedule(self.rate)(step), memory["curvature"]
        if isinstance(self.momentum, HeavyBall):
            gamma, before = self.momentum.decay, memory["previous_curvature"]
            kept = old.times(1.0)
            new = self._towards(kept, derivatives.curvature, rate, prior_precision)
            new = new.plus(old.times(gamma)).plus(before.times(-gamma))
            memory["before_previous"], memory["previous_curvature"] = before, old
        else:
            new = self._towards(old, derivatives.curvature, rate, prior_precision)
        memory["curvature"] = new
        if self.fixed_precision:
            return posterior.precision
        unbiased = new.times(self._correction(step)) if self.debias else new
        return unbiased.damped(prior_precision)

    def _towards(self, old: Matrix, target: Matrix, rate: float, damping: float) -> Matrix:
        """A step from the average of the curvature towards a new estimate; uses up both."""
        return old.retract_(target, rate, damping) if self.retract else old.lerp_(target, rate)

    def _correction(self, step: int) -> float:
        """What an average that began at zero is to be multiplied by."""
        if not self.debias:
            return 1.0
        return 1.0 / (1.0 - (1.0 - as_schedule(self.rate)(step)) ** (step + 1))

    def _gradient(
        self,
        posterior: Gaussian,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Params, float]:
        """The gradient with the prior's, as a new vector times a number; `memory` moves."""
        if not isinstance(self.momentum, Average):
            return vectors.add(derivatives.gradient, posterior.mean, alpha=prior_precision), 1.0
        decay = self.momentum.decay
        average = vectors.lerp_(memory["gradient"], derivatives.gradient, 1.0 - decay)
        # The average began at zero: without bias it is larger by 1 / seen.
        seen = 1.0 - decay ** (step + 1)
        return vectors.add(average, posterior.mean, alpha=prior_precision * seen), 1.0 / seen

    def _preconditioner(
        self,
        precision: Matrix,
        prior_precision: float,
        weight: float,
        memory: Memory,
        step: int,
    ) -> Matrix:
        """What the mean's gradient is divided by."""
        if not self.square_root:
            return precision.damped(weight * self.damping) if self.damping else precision
        # N (√(F/N) + δ/N + ε) = √(N F) + δ + N ε, with F without bias.
        root = vectors.sqrt(memory["curvature"].diagonal())
        vectors.scale_(root, (weight * self._correction(step)) ** 0.5)
        vectors.shift_(root, prior_precision + weight * (self.epsilon + self.damping))
        return DiagonalMatrix(root)

    def _roll(
        self,
        mean: Params,
        posterior: Gaussian,
        precision: Matrix,
        prior_precision: float,
        memory: Memory,
    ) -> None:
        """Adds `γ S⁻¹ S₋ (m − m₋)`, S the new precision and S₋, m₋ those of the step before."""
        assert isinstance(self.momentum, HeavyBall)
        velocity = vectors.add(posterior.mean, memory["previous_mean"], alpha=-1.0)
        memory["previous_mean"] = posterior.mean
        before = memory.pop("before_previous", None)
        if before is not None and not self.fixed_precision:
            velocity = precision.solve(before.damped(prior_precision).matmul(velocity))
        vectors.add_(mean, velocity, alpha=self.momentum.decay)


def _innermost(structure: Structure) -> Structure:
    """The structure of the weights that are uncertain."""
    return _innermost(structure.inner) if isinstance(structure, Subset) else structure
