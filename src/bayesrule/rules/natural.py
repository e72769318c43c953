"""The Bayesian learning rule for Gaussians: natural gradients of the variational objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bayesrule.curvature import Curvature, NoCurvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import Diagonal, Matrix, Structure
from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.rules._base import Memory, Now, Rule, refuse_look, refuse_negative
from bayesrule.rules._natural_step import NaturalStep
from bayesrule.rules.momentum import Average, HeavyBall, Momentum, Velocity
from bayesrule.schedules import Schedule, as_schedule
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Number, Params

# Options that only affect how a precision moves.
_OF_PRECISIONS = ("square_root", "debias", "retract", "fixed_precision", "damping")


class NaturalRates(NamedTuple):
    """What may change from step to step: numbers, or 0-d tensors where steps are replayed.

    An average of gradients that starts at zero has only `seen = 1 − decayᵗ` of the gradient's size;
    `learning_rate` is larger by its inverse. `unbiased` is the same inverse for the curvature's
    average.
    """

    learning_rate: Number
    rate: Number
    seen: Number
    unbiased: Number


@dataclass(frozen=True)
class Natural(Rule):
    """`S ← (1−ρ) S + ρ (E[∇²ℓ] + P)`, then `m ← m − α S⁻¹ (E[∇ℓ] + P (m − m₀))`.

    Khan & Rue (2023), eqs 3 and 4, with the prior N(m₀, P⁻¹), α `learning_rate`, ρ `rate`. The
    average F of the curvature is kept without the prior, `S = F + P`. A schedule of `rate` counts
    the estimates of the curvature, not the steps.

    - `momentum`: `Average(decay)` of the gradients, `Velocity(decay)` of the steps,
      `HeavyBall(decay)` in natural parameters, or None.
    - `prior_at_draws`: the prior's gradient is taken at the drawn weights and averaged with the
      loss's, as in noisy natural gradients; Zhang et al. (2018), eq. 9.
    - `square_root`: the mean is preconditioned by `N (√(F/N) + δ/N + epsilon)` instead of S, as in
      RMSprop, Adam and noisy Adam, with the prior's precision δ; with `damped_root` by
      `N √(F/N + δ/N)`. F is then diagonal. The prior bounds the steps of weights that get no
      gradient.
    - `from_zero`: the average of the curvature starts at zero (RMSprop), not at the family's
      initial curvature; with `debias` it does too, and is corrected for it (Adam).
    - `retract`: a step after which S is positive although the curvature may be negative.
    - `damping`: added to F/N where the mean is preconditioned, but not to the posterior's
      precision.
    - `clip`: the largest absolute entry of the preconditioned gradient.
    - `kl_clip`: c in `ν = min(1, √(c / (α² gᵀS⁻¹g / N)))`, which multiplies a step, so that the
      predictions move by at most about c nats per datum. c is multiplied by the loss per datum if
      that is above one nat, at most by a thousand; for classes also if it is below, down to a bound
      (`Likelihood.least_loss`).
    - `curvature_noise`: v in `ρ ≤ 2 v B T / N`. With a batch of B data, the variance of Price's
      estimate is N/(BT) times that of the curvature itself; that of the average is then at most
      about v.
    - `stats_every`: the curvature is estimated in every n-th step only, from the first one on.
    - `inverse_every`: S follows F in every n-th step only, and its roots are kept in between, as
      are the eigenbases of corrected factors (George et al. 2018).
    - `fixed_precision`: only the mean moves.
    """

    learning_rate: float | Schedule = 1e-3
    rate: float | Schedule = 1e-3
    momentum: Momentum | None = None
    square_root: bool = False
    epsilon: float = 1e-8
    from_zero: bool = False
    debias: bool = False
    retract: bool = False
    damping: float = 0.0
    clip: float = math.inf
    fixed_precision: bool = False
    prior_at_draws: bool = False
    damped_root: bool = False
    kl_clip: float = math.inf
    curvature_noise: float = math.inf
    stats_every: int = 1
    inverse_every: int = 1

    def __post_init__(self) -> None:
        refuse_negative(self, "learning_rate", "rate")
        for name in ("stats_every", "inverse_every"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} is a number of steps, at least 1, got {value!r}.")
        for name in ("damping", "epsilon"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("clip", "kl_clip", "curvature_noise"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        if self.damped_root and not self.square_root:
            raise ValueError("damped_root says which root is taken: add square_root=True.")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Refuses options that have no effect on a precision that does not move."""
        if not self.fixed_precision:
            return
        unused = {
            "debias": self.debias and not self.square_root,
            "retract": self.retract,
            "damping": self.damping > 0 and not self.square_root,
            "inverse_every": self.inverse_every > 1,
        }
        for name, is_set in unused.items():
            if is_set:
                raise ValueError(
                    f"{name} is for a precision that moves, which fixed_precision=True keeps: "
                    "leave one of them out."
                )

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        structure = family.structure
        if structure is None or not family.spreads:
            raise TypeError(
                f"Natural gradients need a Gaussian, got {type(family).__name__}; use "
                "GaussianFamily(Diagonal()) or a rule that follows the ELBO's gradient."
            )
        refuse_look(expectation, curvature)
        self._check_curvature(family, structure, curvature)
        self._check_structure(structure, curvature)

    def _check_curvature(self, family: Family, structure: Structure, curvature: Curvature) -> None:
        """Refuses a curvature that moves nothing, or that cannot move the precision."""
        kind, shape = type(curvature).__name__, type(structure).__name__
        useless = [name for name in _OF_PRECISIONS if getattr(self, name)]
        if not structure.moves and useless:
            raise ValueError(
                f"{family!r} has no precision that moves, so {useless[0]} would do nothing; leave "
                "it out."
            )
        moving = self.square_root or self.moves_precision(family)
        if moving and not curvature.gives_curvature:
            raise ValueError(
                f"{kind}() gives nothing to move the precision with; use PerExample(), Fisher(), "
                "GGN() or Price(), or Natural(fixed_precision=True)."
            )
        if not moving and curvature.gives_curvature:
            raise ValueError(
                f"The precision of {family!r} stays as it is, so {kind}() would be computed for "
                "nothing; use NoCurvature()."
            )
        if curvature.slopes_only or (curvature.diagonal_only and not structure.elementwise):
            raise ValueError(
                f"{kind}() gives slopes or a diagonal, but natural gradients of {shape}() need a "
                "curvature of that structure; use PerExample(), Fisher() or GGN(), or Elbo()."
            )
        if structure.mixes_entropy and moving and not self.retract:
            raise ValueError(
                f"The curvature of {family!r} holds that of its entropy, which may be negative; "
                "use Natural(retract=True)."
            )
        # Such a structure raises an error itself if it is not positive, or drops the negative part.
        watched = structure.says_if_negative or structure.positive_part
        if curvature.may_be_negative and moving:
            if not self.retract and (curvature.needs_draws or not watched):
                raise ValueError(f"{kind}() may be negative; use Natural(retract=True).")
            if self.square_root:
                raise ValueError(
                    f"{kind}() may be negative and then has no square root; use SquaredGradient(), "
                    "PerExample(), Fisher() or GGN(), or Natural(square_root=False)."
                )

    def _check_structure(self, structure: Structure, curvature: Curvature) -> None:
        """Refuses a structure that does not fit the curvature or the options."""
        kind, shape = type(curvature).__name__, type(structure).__name__
        if structure.positive_part and self.retract:
            raise ValueError(
                f"{shape}() is never negative, so retract=True would do nothing; leave it out."
            )
        if structure.needs_layers and curvature.gives_curvature and not curvature.needs_rows:
            raise ValueError(
                f"{shape}() is made layer by layer from single examples, which {kind}() does not "
                "look at: use Fisher(), GGN() or PerExample()."
            )
        subtracts = curvature.needs_draws or isinstance(self.momentum, HeavyBall)
        if structure.only_positive and subtracts:
            raise ValueError(
                f"{shape}() can only be averaged over positive curvature: use PerExample(), "
                "Fisher() or GGN(), and Average() instead of HeavyBall()."
            )
        if self.square_root and not structure.elementwise:
            raise ValueError(
                f"square_root=True takes the root of a diagonal: use Diagonal(), got {shape}()."
            )

    def structure(self, family: Family) -> Structure:
        assert family.structure is not None
        return Diagonal() if self.square_root else family.structure

    def structure_at(self, family: Family, posterior: Posterior, step: int) -> Structure:
        structure = self.structure(family)
        if step % self.inverse_every == 0 or not structure.layered:
            return structure
        # The posterior has the bases of the average until S follows the average again.
        return structure.in_bases_of(posterior.precision)  # type: ignore[attr-defined]

    def curvature_at(self, curvature: Curvature, step: int) -> Curvature:
        return NoCurvature() if step % self.stats_every else curvature

    def average(self, point: Point) -> Params | None:
        return point.position if self.prior_at_draws else None

    def moves_precision(self, family: Family) -> bool:
        """Whether the precision of a family's posteriors follows the curvature."""
        assert family.structure is not None
        return not self.fixed_precision and family.structure.moves

    # Memory and rates.

    def copied(self, posterior: Posterior, memory: Memory) -> tuple[Posterior, Memory]:
        # A step overwrites no precision, so its roots can be kept.
        mean = {name: value.clone() for name, value in posterior.coordinates().mean.items()}
        shared = {k: v for k, v in memory.items() if k == "preconditioner"}
        return posterior.with_mean(mean), tree.map_tensors(memory, torch.clone) | shared

    def init(self, family: Family, posterior: Posterior, weight: float) -> Memory:
        memory: Memory = {}
        first = posterior.coordinates()
        if self.moves_precision(family) or self.square_root:
            memory["curvature"] = self._first_curvature(family, posterior, weight)
        if isinstance(self.momentum, Average | Velocity):
            memory["momentum"] = vectors.zeros_like(first.mean)
        if isinstance(self.momentum, HeavyBall):
            memory["previous_mean"] = {k: v.clone() for k, v in first.mean.items()}
            memory["previous_curvature"] = memory.get("curvature")
        if self.damped_apart:
            # A placeholder of the right structure for loading; the first step computes it.
            memory["preconditioner"] = first.precision
        return memory

    def adopted(
        self, memory: Memory, turn: Callable[[Params], Params], posterior: Posterior, weight: float
    ) -> Memory:
        memory = dict(memory)
        if "momentum" in memory:
            memory["momentum"] = turn(memory["momentum"])
        if "preconditioner" in memory:
            precision: Matrix = posterior.precision  # type: ignore[attr-defined]
            memory["preconditioner"] = posterior.divisor(precision.damped(weight * self.damping))
        return memory

    def _first_curvature(self, family: Family, posterior: Posterior, weight: float) -> Matrix:
        if self.from_zero or self.debias:
            return self.structure(family).identity(posterior.mean, 0.0)
        return family.first_curvature(posterior.mean, weight)

    @property
    def damped_apart(self) -> bool:
        """Whether the mean is preconditioned by another matrix than the posterior's precision."""
        return self.damping > 0 and not self.square_root

    @derived
    def constant_rates(self) -> tuple[str, ...]:
        changing = {"learning_rate": callable(self.learning_rate), "rate": callable(self.rate)}
        if isinstance(self.momentum, Average):
            changing |= {"learning_rate": True, "seen": True}
        changing["unbiased"] = self.debias
        return tuple(name for name in NaturalRates._fields if not changing.get(name, False))

    def rates(self, step: int) -> NaturalRates:
        rate = as_schedule(self.rate)(step // self.stats_every)
        decay = self.momentum.decay if isinstance(self.momentum, Average) else 0.0
        seen = 1.0 - decay ** (step + 1)
        unbiased = 1.0 / (1.0 - (1.0 - rate) ** (step + 1)) if self.debias else 1.0
        return NaturalRates(as_schedule(self.learning_rate)(step) / seen, rate, seen, unbiased)

    def kind(self, step: int) -> int:
        stats, inverse = step % self.stats_every == 0, step % self.inverse_every == 0
        stale = inverse and self.is_stale(step)
        return stats + 2 * inverse + 4 * stale

    def is_stale(self, step: int) -> bool:
        """Whether S will follow an average whose last estimate was taken in kept bases."""
        last = step - step % self.stats_every
        return step % self.inverse_every == 0 and 0 < step - last < self.inverse_every

    @property
    def looks_at_direction(self) -> bool:
        """Whether a step changes more than the length of the preconditioned gradient."""
        return math.isfinite(self.clip) or isinstance(self.momentum, Velocity | HeavyBall)

    def move(self, now: Now) -> tuple[Posterior, Memory]:
        return NaturalStep(self, now).run()

    # How its steps can run.

    def stack_obstacle(
        self, family: Family, expectation: Expectation, curvature: Curvature
    ) -> str | None:
        structure = family.structure
        assert structure is not None
        if structure.elementwise:
            return None
        # A covariance that is neither moved nor used may have any structure.
        unmoved = self.fixed_precision and not curvature.needs_rows and curvature.of_weights
        fits = curvature.needs_rows if structure.layered else not curvature.needs_draws
        if unmoved or (structure.stacks and fits):
            return None
        return f"a covariance of the structure {type(structure).__name__}"

    def works_in_rows(self, family: Family) -> bool:
        return family.structure is not None and family.structure.elementwise

    def replay_obstacle(self, family: Family, expectation: Expectation) -> str | None:
        return family.replay_obstacle
