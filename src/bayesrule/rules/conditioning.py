"""Closed-form conditioning of independent Gaussians on each batch: the update of TAGI."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayesrule.curvature import Curvature, Innovations
from bayesrule.expectations import Expectation, Moments
from bayesrule.matrices import Diagonal, DiagonalMatrix, Structure
from bayesrule.posteriors import Family, Gaussian, GaussianFamily
from bayesrule.rules._base import Memory, Rule
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Params


@dataclass(frozen=True)
class Conditioning(Rule):
    """`m ← m + v δ` and `v ← v + v² η`, sums over the batch; Goulet et al. (2021), eq. 17.

    The examples of a batch are taken as independent given the weights from before it, so a large
    batch may ask for more than is sensible. No mean moves by more than `reach` standard deviations,
    and no step takes more than the share `loss` of a variance, which so stays positive. One example
    alone is conditioned on exactly, as far as float numbers go; `reach` is then ten.
    """

    reach: float = 0.5
    loss: float = 0.5

    def __post_init__(self) -> None:
        if not self.reach > 0 or not 0 < self.loss < 1:
            raise ValueError(
                f"reach must be positive and loss between 0 and 1, got {self.reach}, {self.loss}."
            )

    @classmethod
    def over(cls, num_data: int, steps: int, reach: float = 0.5) -> Conditioning:
        """Bounds for a whole training of so many steps over data that are seen again and again.

        Conditioning on the same data in every epoch makes a belief sure of itself before it has
        learned. With these bounds no variance falls by more than the factor `10 num_data` over the
        training, evenly: what so many data of noise variance 0.1 could do to a variance of one.

        >>> Conditioning.over(num_data=1000, steps=2000).loss
        0.0046...
        """
        return cls(reach, min(0.5, math.log(10.0 * num_data) / steps))

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        if not isinstance(family, GaussianFamily) or not isinstance(family.structure, Diagonal):
            raise TypeError(
                "Conditioning needs independent Gaussian weights, got "
                f"{_kind(family)}; use GaussianFamily(Diagonal())."
            )
        if not isinstance(expectation, Moments) or not isinstance(curvature, Innovations):
            raise ValueError(
                "Conditioning works on closed-form moments: use expectation=Moments() and "
                f"curvature=Innovations(), got {type(expectation).__name__} and "
                f"{type(curvature).__name__}."
            )

    def structure(self, family: Family) -> Structure:
        return Diagonal()

    def init(self, family: Family, params: Params, weight: float) -> Memory:
        return {}

    def step(
        self,
        posterior: Gaussian,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Gaussian, Memory]:
        assert isinstance(derivatives.curvature, DiagonalMatrix)
        reach, loss = (10.0, 1.0 - 1e-6) if derivatives.count == 1 else (self.reach, self.loss)
        precision = posterior.precision.diagonal()
        # In standard deviations: the step is √v g, bounded; the variance falls by the share v c.
        std = vectors.rsqrt(precision)
        steps = vectors.clamp_(vectors.mul_(derivatives.gradient, std), reach)
        mean = vectors.add_(posterior.mean, vectors.mul_(steps, std), alpha=-1.0)
        share = vectors.div_(derivatives.curvature.values, precision)
        kept = vectors.shift_(vectors.scale_(vectors.clamp_(share, loss), -1.0), 1.0)
        return Gaussian(mean, DiagonalMatrix(vectors.div_(precision, kept))), memory


def _kind(family: Family) -> str:
    """What there is instead of independent Gaussians."""
    chosen = family.structure if isinstance(family, GaussianFamily) else family
    return type(chosen).__name__
