"""Point estimates: weights that are learned without a variance."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from bayesrule.matrices import Known, KnownMatrix, Matrix
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian, gaussian_prior
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import GaussianPrior, Prior
from bayesrule.types import Params


@dataclass(frozen=True)
class _Estimate(Point):
    """The weights themselves, whose gradient tells nothing about a spread."""

    def price(self, gradient: Params) -> Matrix:
        return KnownMatrix()

    def mirrored(self) -> _Estimate:
        return self


@dataclass(frozen=True, repr=False)
class PointBelief(Gaussian):
    """All probability on one value: a mean without variance, of infinite precision."""

    precision: Matrix = field(default_factory=KnownMatrix)

    words = Posterior.words

    def sample(self, generator: Generator) -> Params:
        return {name: value.clone() for name, value in self.mean.items()}

    def draw(self, generator: Generator) -> Point:
        return _Estimate(self.mean)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        # A single value has no density; only the posterior of the other weights counts.
        return torch.zeros((), device=self.device)

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return torch.zeros((), device=self.device)

    def with_precision(self, precision: Matrix) -> tuple[PointBelief, None]:
        return self, None

    def kept(self) -> Gaussian:
        raise TypeError(
            "A value without a variance is no prior of Gaussian weights: it says nothing of how "
            f"far from it they may be, got {self!r}; use GaussianPrior(precision)."
        )


@dataclass(frozen=True)
class PointEstimate(Family):
    """Weights without a variance: gradient descent moves them, natural gradients do not.

    - `with_prior`: the prior pulls on them, as for the most probable weights (MAP).
    """

    with_prior: bool = True

    structure = Known()
    has_mean = True
    spreads = False
    independent = True
    linearisable = True

    stack_obstacle = replay_obstacle = None

    def prior(self, given: object, params: Params) -> Prior:
        # An earlier value does not tell how far from it a later one may be.
        prior = GaussianPrior(0.0) if isinstance(given, PointBelief) else gaussian_prior(given)
        return prior if self.with_prior else GaussianPrior(0.0)

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> PointBelief:
        return PointBelief({name: value.detach().clone() for name, value in params.items()})
