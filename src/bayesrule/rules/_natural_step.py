"""One step of natural gradients: the precision follows the curvature, the mean descends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from bayesrule.matrices import DiagonalMatrix, Matrix
from bayesrule.posteriors import Posterior
from bayesrule.rules._base import Memory, Now
from bayesrule.rules.momentum import Average, HeavyBall, Velocity
from bayesrule.tensors import vectors
from bayesrule.types import Number, Params

if TYPE_CHECKING:
    from bayesrule.rules.natural import Natural


class NaturalStep:
    """A step in progress: `posterior`, `gradient` and `memory` are updated as it goes."""

    def __init__(self, rule: Natural, now: Now) -> None:
        self.rule, self.prior, self.rates = rule, now.prior, now.rates
        self.derivatives, self.number = now.derivatives, now.step
        self.before: Posterior = now.posterior
        self.posterior: Posterior = now.posterior
        self.gradient, self.memory = now.derivatives.gradient, dict(now.memory)

    def run(self) -> tuple[Posterior, Memory]:
        """Takes the step; returns the new posterior and memory."""
        self._average_curvature()
        if self.rule.prior_at_draws:
            assert self.derivatives.average is not None
            prior = self.posterior.seen(self.prior)
            self.gradient = prior.pull_(self.gradient, self.derivatives.average)
        if "curvature" in self.memory and self.number % self.rule.inverse_every == 0:
            self._follow_curvature()
        self._average_gradient()
        return self.posterior.with_mean(self._descended()), self.memory

    def _average_curvature(self) -> None:
        """Moves the average of the curvature towards the new estimate."""
        target, old = self.derivatives.curvature, self.memory.get("curvature")
        if old is None:
            return
        if target is None:
            if self.rule.is_stale(self.number):
                self.memory["curvature"] = old.refreshed()
            return
        momentum = self.rule.momentum
        if isinstance(momentum, HeavyBall):
            gamma, before = momentum.decay, self.memory["previous_curvature"]
            new = self._towards(old.times(1.0), target)
            self.memory["curvature"] = new.plus(old.times(gamma)).plus(before.times(-gamma))
            self.memory["before_previous"], self.memory["previous_curvature"] = before, old
        else:
            self.memory["curvature"] = self._towards(old, target)

    def _towards(self, old: Matrix, target: Matrix) -> Matrix:
        """The average of the curvature, moved towards a new estimate; overwrites both."""
        rate = self._rate()
        if not self.rule.retract:
            return old.lerp_(target, rate)
        return old.retract_(target, rate, self.posterior.whole_precision())

    def _rate(self) -> Number:
        """The weight of a new curvature estimate, as large as its noise allows."""
        rate, noise = self.rates.rate, self.rule.curvature_noise
        if not math.isfinite(noise):
            return rate
        most = 2.0 * noise * self.derivatives.count / self.derivatives.weight
        if isinstance(rate, Tensor):
            return rate.clamp(max=most)
        # In a stack there is one number for each net.
        return most.clamp(max=rate) if isinstance(most, Tensor) else min(rate, most)

    def _follow_curvature(self) -> None:
        """The precision follows the averaged curvature; gradient and momentum turn with it."""
        rule, curvature = self.rule, self.memory["curvature"]
        if rule.fixed_precision:
            return
        unbiased = curvature.times(self.rates.unbiased) if rule.debias else curvature
        precision = self.prior.added_to(unbiased)
        self.posterior, turn = self.posterior.with_precision(precision)
        if rule.damped_apart:
            damped = precision.damped(self.derivatives.weight * rule.damping)
            self.memory["preconditioner"] = self.posterior.divisor(damped)
        if turn is not None:
            self.gradient = turn(self.gradient)
            if "momentum" in self.memory:
                self.memory["momentum"] = turn(self.memory["momentum"])

    def _average_gradient(self) -> None:
        """Adds the prior to the gradient, and averages the gradient if the rule does.

        The average is smaller than the gradient by the factor `rates.seen`, so the prior is scaled
        by it.
        """
        momentum, prior = self.rule.momentum, self.posterior.seen(self.prior)
        pull = prior.pull_
        if isinstance(momentum, Average):
            average = self.memory["momentum"]
            self.gradient = vectors.lerp_(average, self.gradient, 1.0 - momentum.decay)
            # The average must survive for the next step.
            pull = prior.pulled
        if not self.rule.prior_at_draws:
            mean = self.posterior.coordinates().mean
            self.gradient = pull(self.gradient, mean, self.rates.seen)

    def _divisor(self) -> tuple[Matrix, Number]:
        """A matrix and a factor whose product divides the gradient of the mean."""
        rule, weight = self.rule, self.derivatives.weight
        if not rule.square_root:
            precision = self.posterior.coordinates().precision
            return self.memory["preconditioner"] if rule.damped_apart else precision, 1.0
        values = self.memory["curvature"].diagonal()
        factor = (weight * self.rates.unbiased) ** 0.5
        delta = self.prior.diagonal(values)
        more = weight * (rule.damping + (0.0 if rule.damped_root else rule.epsilon))
        # N √(F/N + γ) = √N √(F + Nγ), and N (√(F/N) + γ) = √N (√F + √N γ), F without bias.
        if rule.damped_root:
            # The average must survive for the next step.
            shifted = _shifted(values, delta, more, 1.0, in_place=False)
            return DiagonalMatrix(vectors.sqrt(shifted)), factor
        root = _shifted(vectors.sqrt(values), delta, more, factor, in_place=True)
        return DiagonalMatrix(root), factor

    def _descended(self) -> Params:
        """The mean after the step, which overwrites the mean before it."""
        (divisor, factor), rate = self._divisor(), self.rates.learning_rate
        mean, shortened = self.posterior.coordinates().mean, math.isfinite(self.rule.kl_clip)
        if not self.rule.looks_at_direction and not shortened:
            return divisor.descend_(mean, self.gradient, rate / factor)
        # The stacked nets, each with its own loss, come first in all tensors.
        nets = self.derivatives.loss.ndim
        if not self.rule.looks_at_direction:

            def rate_of(moved: Tensor) -> Number:
                share = self._share(moved / factor)
                # A number is faster than a tensor, and on a CPU reading it costs nothing.
                read = not isinstance(rate, Tensor) and nets == 0 and share.device.type == "cpu"
                return (share.item() if read else share) * (rate / factor)

            return divisor.descend_shortened_(mean, self.gradient, rate_of, nets)
        divisor = divisor.times_(factor) if self.rule.square_root else divisor
        direction = divisor.solve(self.gradient)
        if shortened:
            moved = vectors.dot(self.gradient, direction, nets)
            vectors.scale_(direction, self._share(moved))
        if math.isfinite(self.rule.clip):
            direction = vectors.clamp_(direction, self.rule.clip * self.rates.seen)
        momentum = self.rule.momentum
        if isinstance(momentum, Velocity):
            velocity = vectors.scale_(self.memory["momentum"], momentum.decay)
            direction = vectors.add_(velocity, direction)
        if isinstance(momentum, HeavyBall):
            return self._rolled(vectors.add(mean, direction, alpha=-rate), momentum)
        return vectors.add_(mean, direction, alpha=-rate)

    def _share(self, moved: Tensor) -> Tensor:
        """ν of `kl_clip`, which multiplies a step, from `gᵀ S⁻¹ g`."""
        derivatives = self.derivatives
        moved = moved * (self.rates.learning_rate**2 / derivatives.weight)
        # A large loss per datum allows longer steps.
        loss = derivatives.loss.nan_to_num(0.0) / derivatives.num_data
        most = self.rule.kl_clip * loss.clamp(derivatives.least_loss, 1e3)
        return (most / moved).sqrt().clamp_max(1.0)

    def _rolled(self, mean: Params, momentum: HeavyBall) -> Params:
        """Adds `γ S⁻¹ S₋ (m − m₋)`, where S₋ and m₋ are the precision and mean of the last step."""
        last = self.before.coordinates().mean
        velocity = vectors.add(last, self.memory["previous_mean"], alpha=-1.0)
        self.memory["previous_mean"] = last
        earlier = self.memory.pop("before_previous", None)
        if earlier is not None and not self.rule.fixed_precision:
            precision = self.posterior.coordinates().precision
            velocity = precision.solve(self.prior.added_to(earlier).matmul(velocity))
        return vectors.add_(mean, velocity, alpha=momentum.decay)


def _shifted(
    values: Params, delta: float | Params, more: float, factor: Number, *, in_place: bool
) -> Params:
    """`values + (delta + more) / factor`."""
    if isinstance(delta, dict):
        total = vectors.shift({name: delta[name] for name in values}, more)
        add = vectors.add_ if in_place else vectors.add
        return add(values, vectors.scale_(total, 1.0 / factor))
    shift = vectors.shift_ if in_place else vectors.shift
    return shift(values, (delta + more) / factor)
