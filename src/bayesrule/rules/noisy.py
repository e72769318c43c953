"""Noisy natural gradients: steps at drawn weights, with a curvature that is averaged on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, distributed

from bayesrule.curvature import Curvature, NoCurvature
from bayesrule.expectations import AtMean, Draws, Expectation
from bayesrule.matrices import Diagonal, DiagonalMatrix, Matrix, Structure
from bayesrule.matrices.rotation import Rotation
from bayesrule.posteriors import Family, Gaussian, GaussianFamily, Rotated, RotatedFamily
from bayesrule.rules._base import Memory, RatedRule
from bayesrule.rules.momentum import Average, Velocity
from bayesrule.schedules import Schedule, as_schedule
from bayesrule.tensors import tree, vectors
from bayesrule.types import Derivatives, Params

Belief = Gaussian | Rotated
T = TypeVar("T")


class Rates(NamedTuple):
    """What may change from step to step: numbers, or 0-d tensors where steps are replayed.

    `learning_rate` is without the bias of an average of gradients that began at zero.
    """

    learning_rate: float | Tensor
    rate: float | Tensor


@dataclass(frozen=True)
class Noisy(RatedRule):
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
    - `inverse_every`: S follows F in each n-th step only, so that its roots are kept in between,
      and the eigenbases of corrected factors, too (George et al. 2018).
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

        if isinstance(family, RotatedFamily) and not curvature.takes_rotations:
            raise ValueError(
                f"{kind}() looks at the weights as they are: use GaussianFamily() instead of "
                "RotatedFamily(), or Fisher() or GGN()."
            )

    def structure(self, family: Family) -> Structure:
        assert isinstance(family, GaussianFamily)
        return family.structure

    def structure_at(self, family: Family, precision: Matrix | None, step: int) -> Structure:
        structure = self.structure(family)
        if precision is None or step % self.inverse_every == 0:
            return structure
        # The bases of the belief are those of the average until S follows it again.
        return structure.beside(precision)

    def curvature_at(self, given: Curvature, step: int) -> Curvature:
        return NoCurvature() if step % self.stats_every else given

    def copied(self, posterior: Belief, memory: Memory) -> tuple[Belief, Memory]:  # type: ignore[override]
        # A step changes no precision in place, so its roots can be kept.
        mean = {name: value.clone() for name, value in _seen(posterior).mean.items()}
        shared = {k: v for k, v in memory.items() if k == "preconditioner"}
        return _moved(posterior, mean), tree.map_tensors(memory, torch.clone) | shared

    def init(self, family: Family, params: Params, weight: float) -> Memory:
        assert isinstance(family, GaussianFamily)
        memory: Memory = {"curvature": family.first_curvature(params, weight)}
        first = _seen(family.init(params, weight=weight, prior_precision=1.0))
        if self.momentum is not None:
            memory["momentum"] = vectors.zeros_like(first.mean)
        if self._damped_apart:
            # A place to load one into; the first step makes it.
            memory["preconditioner"] = first.precision
        return memory

    @property
    def _damped_apart(self) -> bool:
        """Whether the mean is preconditioned by another matrix than the belief's precision."""
        return self.damping > 0 and not self.square_root

    def rates(self, step: int) -> Rates:
        """The numbers of a step."""
        rate = as_schedule(self.learning_rate)(step)
        if isinstance(self.momentum, Average):
            # The average began at zero: without bias it is larger.
            rate = rate / (1.0 - self.momentum.decay ** (step + 1))
        return Rates(rate, as_schedule(self.rate)(step))

    def move(
        self,
        posterior: Belief,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        rates: Rates,
        step: int = 0,
    ) -> tuple[Belief, Memory]:
        """The step itself; its number says what is looked at and what is kept from before."""
        memory, weight = dict(memory), derivatives.weight
        if derivatives.curvature is not None:
            memory["curvature"] = memory["curvature"].lerp_(derivatives.curvature, rates.rate)
        elif self._is_stale(step):
            memory["curvature"] = memory["curvature"].refreshed()
        where = derivatives.weights if self.prior_at_draws else _seen(posterior).mean
        assert where is not None
        gradient = vectors.add_(derivatives.gradient, where, alpha=prior_precision)
        if step % self.inverse_every == 0:
            posterior, gradient = self._follow(posterior, gradient, prior_precision, weight, memory)
        seen = _seen(posterior)
        divisor, factor = self._divisor(seen.precision, prior_precision, weight, memory)
        # The nets of a stack, each with a loss of its own, come first in all tensors.
        nets = derivatives.loss.ndim
        if math.isinf(self.kl_clip) and not isinstance(self.momentum, Velocity):
            gradient, rate = self._averaged(gradient, memory), rates.learning_rate
            mean = divisor.descend_(seen.mean, gradient, rate / factor)
        else:
            divisor = divisor.times_(factor) if self.square_root else divisor
            mean = self._descended(seen.mean, divisor, gradient, weight, memory, rates, nets)
        return _moved(posterior, mean), memory

    def _is_stale(self, step: int) -> bool:
        """Whether S is to follow an average that was last moved in bases kept from before."""
        last = step - step % self.stats_every
        return step % self.inverse_every == 0 and 0 < step - last < self.inverse_every

    def _follow(
        self,
        posterior: Belief,
        gradient: Params,
        prior_precision: float,
        weight: float,
        memory: Memory,
    ) -> tuple[Belief, Params]:
        """The belief whose precision follows the average curvature, and the gradient beside it."""
        precision = memory["curvature"].damped(prior_precision)
        if isinstance(posterior, Gaussian):
            if self._damped_apart:
                memory["preconditioner"] = precision.damped(weight * self.damping)
            return Gaussian(posterior.mean, precision), gradient
        new = Rotated.of(posterior.mean, _of_first_rank(precision.spectral()))
        if self._damped_apart:
            # Damping leaves the bases as they are, and those just found are kept.
            damped = _of_first_rank(precision.damped(weight * self.damping).spectral())
            memory["preconditioner"] = DiagonalMatrix(Rotation.of(damped).values())
        old, into = posterior.rotation, new.rotation
        if self.momentum is not None:
            memory["momentum"] = into.into(old.back(memory["momentum"]))
        return new, into.into(old.back(gradient))

    def _divisor(
        self, precision: Matrix, prior_precision: float, weight: float, memory: Memory
    ) -> tuple[Matrix, float]:
        """A matrix and a factor: what the mean's gradient is divided by is their product."""
        if not self.square_root:
            return memory["preconditioner"] if self._damped_apart else precision, 1.0
        more = prior_precision + weight * self.damping
        # N √(F/N + γ) = √N √(F + Nγ), and N (√(F/N) + γ) = √N (√F + √N γ).
        values = memory["curvature"].diagonal()
        if self.damped_root:
            return DiagonalMatrix(vectors.sqrt(vectors.shift(values, more))), weight**0.5
        root = vectors.shift_(vectors.sqrt(values), more / weight**0.5)
        return DiagonalMatrix(root), weight**0.5

    def _averaged(self, gradient: Params, memory: Memory) -> Params:
        if not isinstance(self.momentum, Average):
            return gradient
        return vectors.lerp_(memory["momentum"], gradient, 1.0 - self.momentum.decay)

    def _descended(
        self,
        mean: Params,
        divisor: Matrix,
        gradient: Params,
        weight: float,
        memory: Memory,
        rates: Rates,
        nets: int,
    ) -> Params:
        """The mean after the step; it is used up, and `memory` moves."""
        rate, gradient = rates.learning_rate, self._averaged(gradient, memory)
        direction = divisor.solve(gradient)
        if not math.isinf(self.kl_clip):
            moved = _dot(gradient, direction, nets) * (rate**2 / weight)
            vectors.scale_(direction, (self.kl_clip / moved).sqrt().clamp_max(1.0))
        if isinstance(self.momentum, Velocity):
            velocity = vectors.scale_(memory["momentum"], self.momentum.decay)
            direction = vectors.add_(velocity, direction)
        return vectors.add_(mean, direction, alpha=-rate)


def _dot(a: Params, b: Params, nets: int) -> Tensor:
    """`⟨a, b⟩`, 0-d, or one for each net, (num,)."""
    pairs = [(a[name].flatten(nets), b[name].flatten(nets)) for name in a]
    return torch.stack([torch.linalg.vecdot(*pair) for pair in pairs]).sum(0)


def _seen(posterior: Belief) -> Gaussian:
    """The belief in the coordinates in which it moves."""
    return posterior.inner if isinstance(posterior, Rotated) else posterior


def _moved(posterior: Belief, mean: Params) -> Belief:
    """The belief with another mean, given in the coordinates in which it moves."""
    if isinstance(posterior, Rotated):
        return replace(posterior, rotated=mean)
    return replace(posterior, mean=mean)


def _of_first_rank(matrix: T) -> T:
    """The matrix as the first machine has it: eigenvectors are not the same on all of them."""
    if distributed.is_available() and distributed.is_initialized():
        for _, value in tree.leaves(matrix):
            assert isinstance(value, Tensor)
            distributed.broadcast(value, src=0)
    return matrix
