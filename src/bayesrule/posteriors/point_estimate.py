"""Weights that are learned as numbers, without a variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.matrices import Known, KnownMatrix, Matrix, Structure
from bayesrule.posteriors._base import ElboTerms, Family, Free, Posterior
from bayesrule.posteriors.gaussian import Gaussian, gaussian_prior
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import GaussianPrior, Prior
from bayesrule.tensors import vectors
from bayesrule.types import Params


@dataclass(frozen=True)
class _Here(Point):
    """The weights themselves; a gradient there says nothing of a spread."""

    def price(self, gradient: Params) -> Matrix:
        return KnownMatrix()

    def mirrored(self) -> _Here:
        return self


@dataclass(frozen=True)
class PointBelief(Posterior):
    """All belief on one value: a mean without variance."""

    mean: Params

    independent = True
    linearisable = True

    __repr__ = Posterior.__repr__

    @property
    def num_parameters(self) -> int:
        return vectors.numel(self.mean)

    @property
    def precision(self) -> Matrix:
        """A precision without end."""
        return KnownMatrix()

    @property
    def any_tensor(self) -> Tensor:
        return next(iter(self.mean.values()))

    def variance(self) -> Params:
        return vectors.zeros_like(self.mean)

    def uncertain_variance(self) -> Params:
        return {}

    def sample(self, generator: Generator) -> Params:
        return {name: value.clone() for name, value in self.mean.items()}

    def draw(self, generator: Generator) -> Point:
        return _Here(self.mean)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        # A single value has no density; what is counted is the belief of the other weights.
        return torch.zeros((), device=self.device)

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return torch.zeros((), device=self.device)

    def coordinates(self) -> Gaussian:
        return Gaussian(self.mean, KnownMatrix())

    def with_mean(self, mean: Params) -> PointBelief:
        return PointBelief(mean)

    def with_precision(self, precision: Matrix) -> tuple[PointBelief, None]:
        return self, None

    def free(self) -> Free:
        return {"mean": self.mean}

    def free_gradients(self, terms: ElboTerms) -> Free:
        return {"mean": terms.mean_gradient(self.mean)}


@dataclass(frozen=True)
class PointEstimate(Family):
    """Weights that are learned as numbers: gradient descent moves them, natural gradients do not.

    - `with_prior`: the prior pulls on them, as on the most probable weights (MAP).
    """

    with_prior: bool = True

    has_mean = True
    spreads = False
    independent = True
    linearisable = True

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return Known()

    stack_obstacle = replay_obstacle = None

    def prior(self, given: object, params: Params) -> Prior:
        # An earlier value says nothing of how far from it a later one may be.
        prior = GaussianPrior(0.0) if isinstance(given, PointBelief) else gaussian_prior(given)
        return prior if self.with_prior else GaussianPrior(0.0)

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        return KnownMatrix()

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> PointBelief:
        return PointBelief({name: value.detach().clone() for name, value in params.items()})
