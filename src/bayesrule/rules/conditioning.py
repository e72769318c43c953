"""Closed-form conditioning of independent Gaussians on each batch: the update of TAGI."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation, Look
from bayesrule.matrices import Diagonal, DiagonalMatrix, Structure
from bayesrule.posteriors import Family, Gaussian, Posterior
from bayesrule.rules._base import Memory, Now, Rule, refuse_negative
from bayesrule.schedules import Schedule, as_schedule, falling
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Number, Params

# The share of an output's variance that N data leave is about the number of directions that they
# determine over N. That number grows with N, too: taken to be this constant times √N.
_LEAST = 0.7


class ConditioningRates(NamedTuple):
    """What changes from step to step."""

    fall: Number


@dataclass(frozen=True)
class Conditioning(Rule):
    """`m ← m + v δ` and `v ← v + v² η`, summed over the batch; Goulet et al. (2021), eq. 17.

    The examples of a batch are taken as independent given the weights before it, so a large batch
    may ask for too large a step. No mean moves by more than `reach` standard deviations, and no
    step takes more than the share `largest_share` of a variance, which therefore stays positive. A
    single example is conditioned on exactly, up to rounding; `reach` is then ten.

    Data that are seen again are not new data. Once as many examples were seen as there are, an
    example still moves the means as before, but reduces the variances only as long as the variance
    s of its output is large: by `1 − second_look / share` of the usual amount, with
    `share = s / (s + noise)` summed over outputs. Hence the posterior does not grow more certain
    with every epoch; 0 allows it to.

    A large share also keeps the means moving with the noise of each batch. Many data deserve a
    smaller one in the end: as `fall` goes from 1 to 0, which `fit` spreads over the length of
    training, `second_look` goes down to `0.7 / √N`, where that is less.
    """

    reach: float = 0.5
    largest_share: float = 0.5
    second_look: float = 0.1
    fall: float | Schedule = falling(1.0)

    falls_by: ClassVar[str] = "fall"

    def __post_init__(self) -> None:
        refuse_negative(self, "fall")
        if not self.reach > 0 or not 0 < self.largest_share < 1:
            raise ValueError(
                "reach must be positive and largest_share between 0 and 1, got "
                f"{self.reach}, {self.largest_share}."
            )
        if not 0 <= self.second_look < 1:
            raise ValueError(f"second_look is from 0 to less than 1, got {self.second_look}.")

    @classmethod
    def over(cls, num_data: int, steps: int, reach: float = 0.5) -> Conditioning:
        """Bounds for a whole training of this many steps, over data that are seen repeatedly.

        Conditioning on the same data in every epoch makes a posterior certain before it has
        learned. With these bounds, no variance falls by more than the factor `10 num_data` over the
        training, evenly spread: what this many data with noise variance 0.1 could do to a variance
        of one.

        >>> Conditioning.over(num_data=1000, steps=2000).largest_share
        0.0046...
        """
        return cls(reach, min(0.5, math.log(10.0 * num_data) / steps))

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        if family.structure is None or not family.structure.elementwise:
            raise TypeError(
                f"Conditioning needs independent Gaussian weights, got {family!r}; use "
                "GaussianFamily(Diagonal())."
            )
        if expectation.look is not Look.MOMENTS or curvature.whole_data:
            raise ValueError(
                "Conditioning works on closed-form moments: use expectation=Moments() and "
                f"curvature=Innovations(), got {type(expectation).__name__} and "
                f"{type(curvature).__name__}."
            )

    def structure(self, family: Family) -> Structure:
        return Diagonal()

    @derived
    def constant_rates(self) -> tuple[str, ...]:
        falls = callable(self.fall) and getattr(self.fall, "steps", 1) > 0
        return () if falls else ("fall",)

    def rates(self, step: int) -> ConditioningRates:
        return ConditioningRates(as_schedule(self.fall)(step))

    def init(self, family: Family, posterior: Posterior, weight: float) -> Memory:
        # With an axis, because compilers take 0-d tensors for constants.
        return {"seen": posterior.any_tensor.new_zeros(1)}

    def move(self, now: Now) -> tuple[Gaussian, Memory]:
        posterior, derivatives = now.posterior, now.derivatives
        assert derivatives.curvature is not None
        alone = isinstance(derivatives.count, int) and derivatives.count == 1
        reach, share = (10.0, 1.0 - 1e-6) if alone else (self.reach, self.largest_share)
        precision = posterior.precision.diagonal()
        # The step is √v g standard deviations, bounded; the variance falls by the share v c.
        std = vectors.rsqrt(precision)
        steps = vectors.clamp_(vectors.mul_(derivatives.gradient, std), reach)
        mean = vectors.add_(posterior.mean, vectors.mul_(steps, std), alpha=-1.0)
        shares = vectors.div_(derivatives.curvature.diagonal(), precision)
        # States of earlier versions lack the count.
        seen = now.memory.get("seen", posterior.any_tensor.new_zeros(1))
        taken = self._taken(shares, now, seen)
        shares = vectors.scale_(vectors.clamp_(shares, share), -taken)
        variance_kept = vectors.shift_(shares, 1.0)
        memory = {"seen": seen + derivatives.count}
        return Gaussian(mean, DiagonalMatrix(vectors.div_(precision, variance_kept))), memory

    def _taken(self, shares: Params, now: Now, seen: Tensor) -> Tensor:
        """The share of a batch's reduction of the variances that is applied; one for each net."""
        derivatives = now.derivatives
        least = min(self.second_look, _LEAST / math.sqrt(derivatives.num_data))
        look = least + (self.second_look - least) * now.rates.fall
        # The sums of a batch carry the weight 1/T, but the share of an example does not.
        per_example = derivatives.temperature / derivatives.count
        share = vectors.total(shares, seen.ndim - 1) * per_example
        share = share.nan_to_num(1.0).clamp_min(1e-12)
        again = (1.0 - look / share).clamp_min(0.0)
        return torch.where(seen.squeeze(-1) >= derivatives.num_data, again, torch.ones_like(again))
