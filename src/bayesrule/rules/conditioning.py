"""Closed-form conditioning of independent Gaussians on each batch: the update of TAGI."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation, Look
from bayesrule.matrices import Diagonal, DiagonalMatrix, Structure
from bayesrule.posteriors import Family, Gaussian, Posterior
from bayesrule.rules._base import Memory, Now, Rule
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Params


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
    """

    reach: float = 0.5
    largest_share: float = 0.5
    second_look: float = 0.1

    def __post_init__(self) -> None:
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
        taken = self._taken(shares, derivatives, seen)
        shares = vectors.scale_(vectors.clamp_(shares, share), -taken)
        variance_kept = vectors.shift_(shares, 1.0)
        memory = {"seen": seen + derivatives.count}
        return Gaussian(mean, DiagonalMatrix(vectors.div_(precision, variance_kept))), memory

    def _taken(self, shares: Params, derivatives: Derivatives, seen: Tensor) -> Tensor:
        """The share of a batch's reduction of the variances that is applied; one for each net."""
        # The sums of a batch carry the weight 1/T, but the share of an example does not.
        per_example = derivatives.temperature / derivatives.count
        share = vectors.total(shares, seen.ndim - 1) * per_example
        share = share.nan_to_num(1.0).clamp_min(1e-12)
        again = (1.0 - self.second_look / share).clamp_min(0.0)
        return torch.where(seen.squeeze(-1) >= derivatives.num_data, again, torch.ones_like(again))
