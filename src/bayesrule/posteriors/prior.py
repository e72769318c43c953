"""Priors of the weights: a Gaussian, or the posterior of earlier data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from bayesrule.matrices import Matrix
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Number, Params

if TYPE_CHECKING:
    from bayesrule.posteriors.gaussian import Gaussian

Given = TypeVar("Given")


class Prior(ABC):
    """A prior over the weights, expressed in a posterior's own coordinates.

    In these coordinates c it adds `P (c − centre)` to a gradient, and P to a precision.
    """

    @abstractmethod
    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        """`gradient + factor P (at − centre)`, overwriting the gradient."""

    def pulled(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        """As `pull_`, but into a new vector."""
        return self.pull_(vectors.scale(gradient, 1.0), at, factor)

    @abstractmethod
    def added_to(self, curvature: Matrix) -> Matrix:
        """`F + P`."""

    @abstractmethod
    def diagonal(self, like: Params) -> float | Params:
        """The diagonal of P: one number for all weights, or a tensor for each."""

    @abstractmethod
    def log_prob(self, params: Params) -> Tensor:
        """The log density at given weights, up to a constant."""

    @abstractmethod
    def describe(self) -> Any:
        """A description that identifies the prior, in words or numbers that json can hold."""

    proper: bool = True
    """Whether the prior is a normalised distribution."""
    earlier: Gaussian | None = None
    """The Gaussian posterior of earlier data, if the prior is one."""


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """`N(0, I / precision)` over all weights; a precision of zero is no prior at all.

    >>> GaussianPrior(2.0).diagonal({})
    2.0
    """

    precision: float = 1.0

    def __post_init__(self) -> None:
        if not (self.precision >= 0 and math.isfinite(self.precision)):
            raise ValueError(f"prior_precision must not be negative, got {self.precision}.")

    @derived
    def proper(self) -> bool:
        return self.precision > 0

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        return vectors.add_(gradient, at, alpha=factor * self.precision)

    def pulled(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        return vectors.add(gradient, at, alpha=factor * self.precision)

    def added_to(self, curvature: Matrix) -> Matrix:
        return curvature.damped(self.precision)

    def diagonal(self, like: Params) -> float:
        return self.precision

    def log_prob(self, params: Params) -> Tensor:
        return -0.5 * self.precision * vectors.dot(params, params)

    def describe(self) -> float:
        return self.precision


@dataclass(frozen=True)
class EarlierPosterior(Prior):
    """A Gaussian posterior of earlier data as the prior of later data: `N(mean, precision⁻¹)`."""

    posterior: Gaussian

    @derived
    def earlier(self) -> Gaussian:
        return self.posterior

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        centre = {name: self.posterior.mean[name] for name in gradient}
        offset = vectors.add({name: at[name] for name in gradient}, centre, alpha=-1.0)
        return vectors.add_(gradient, self.posterior.precision.matmul(offset), alpha=factor)

    def added_to(self, curvature: Matrix) -> Matrix:
        if not self.posterior.precision.adds_to(curvature):
            raise TypeError(
                "The prior, an earlier posterior, has a precision of the structure "
                f"{type(self.posterior.precision).__name__}, which cannot be added to "
                f"{type(curvature).__name__}; use a posterior of the same structure."
            )
        return curvature.plus(self.posterior.precision)

    def diagonal(self, like: Params) -> Params:
        return self.posterior.precision.diagonal()

    def log_prob(self, params: Params) -> Tensor:
        return self.posterior.log_prob(params)

    def describe(self) -> list[float]:
        mean, variance = self.posterior.mean, self.posterior.variance()
        return [float(vectors.total(mean)), float(vectors.total(variance))]


def one_of(prior: Given | None, precision: float | None) -> Given | float | None:
    """The prior or its precision, whichever of the two was given."""
    if prior is not None and precision is not None:
        raise ValueError(
            "Give a prior or a prior_precision, not both: prior_precision=δ is short for "
            "prior=GaussianPrior(δ)."
        )
    return precision if prior is None else prior


def check_fits(earlier: Params, params: Params) -> None:
    """Refuses the mean of an earlier posterior of other weights, or one that is not finite."""
    for name, value in params.items():
        before = earlier.get(name)
        if before is None or before.shape != value.shape:
            other = "is not known" if before is None else f"has the shape {tuple(before.shape)}"
            raise ValueError(
                f"The prior is of another module: '{name}' has the shape {tuple(value.shape)}, and "
                f"{other} in the prior. Give what was learned of the same module."
            )
        if not bool(before.isfinite().all()):
            raise ValueError(
                f"The prior is not finite at '{name}'; give a posterior of finite numbers."
            )


def as_prior(given: Prior | float) -> Prior:
    """A prior; a number is the precision of a Gaussian about zero."""
    return given if isinstance(given, Prior) else GaussianPrior(float(given))
