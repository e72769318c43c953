"""Counts with more spread than Poisson's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesrule.likelihoods._base import one_vector_per_output, per_example
from bayesrule.likelihoods._expectations import expected_softplus
from bayesrule.likelihoods._targets import TargetDistribution
from bayesrule.likelihoods.poisson import CountLikelihood
from bayesrule.types import Params


@dataclass(frozen=True, eq=False)
class NegativeBinomialTargets(TargetDistribution):
    """Counts y of mean `μ = exp log_mean` and variance `μ + dispersion · μ²`.

    With `r = 1 / dispersion`: `p(y) = Γ(y + r) / (Γ(r) y!) · (r / (r + μ))^r (μ / (r + μ))^y`.
    """

    log_mean: Tensor
    dispersion: float
    whole_numbers: ClassVar[bool] = True

    @property
    def mean(self) -> Tensor:
        return self.log_mean.exp()

    @property
    def variance(self) -> Tensor:
        mean = self.mean
        return mean + self.dispersion * mean.square()

    def log_prob(self, y: Tensor) -> Tensor:
        logits = self.log_mean + math.log(self.dispersion)
        return _log_prob(y, logits, functional.softplus(logits), self.dispersion)

    def sample(self, generator: Generator) -> Tensor:
        # A Poisson count whose rate is Gamma, of mean μ and variance dispersion · μ².
        shape = torch.full_like(self.log_mean, 1.0 / self.dispersion)
        rate = torch._standard_gamma(shape, generator=generator) * self.dispersion * self.mean
        return torch.poisson(rate, generator=generator)

    def cdf(self, y: Tensor) -> Tensor:
        # P(Y ≤ k) = I_p(r, k + 1) with p = r / (r + μ).
        count, logits = torch.broadcast_tensors(
            y.floor().double(), self.log_mean.double() + math.log(self.dispersion)
        )
        r = torch.full_like(logits, 1.0 / self.dispersion)
        inside = incomplete_beta(r, count.clamp_min(0.0) + 1.0, -logits)
        return torch.where(count < 0, 0.0, inside).to(self.log_mean.dtype)


@dataclass(frozen=True)
class NegativeBinomialLikelihood(CountLikelihood):
    """Counts with more spread than Poisson's: mean `μ = exp f`, variance `μ + dispersion · μ²`.

    f is a log-mean for each count, (n,), (n, 1) or (n, D). The counts are Poisson with rates that
    vary about μ; the dispersion is the square of their relative standard deviation. With a small
    dispersion this is close to PoissonLikelihood.
    """

    dispersion: float = 0.5

    distribution_class = NegativeBinomialTargets

    def __post_init__(self) -> None:
        if not (self.dispersion > 0 and math.isfinite(self.dispersion)):
            raise ValueError(
                f"dispersion must be positive, got {self.dispersion}; counts without any are "
                "PoissonLikelihood()."
            )

    def distribution(self, outputs: Tensor, state: Params) -> NegativeBinomialTargets:
        return NegativeBinomialTargets(outputs, self.dispersion)

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        y = self._checked(outputs, targets)
        return per_example(self.distribution(outputs, state).log_prob(y))

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        # The Fisher information of f is μ / (1 + dispersion · μ).
        logits = outputs + math.log(self.dispersion)
        return one_vector_per_output(torch.exp(0.5 * (outputs - functional.softplus(logits))))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        """`log p` is linear in f except for one softplus, averaged by quadrature."""
        y, logits = self._checked(mean, targets), mean + math.log(self.dispersion)
        expected = expected_softplus(logits, variance)
        return per_example(_log_prob(y, logits, expected, self.dispersion))


def _log_prob(y: Tensor, logits: Tensor, softplus: Tensor, dispersion: float) -> Tensor:
    """`log p(y) = log Γ(y + r) − log Γ(r) − log y! + y z − (y + r) softplus(z)`, `z = log(μ / r)`.

    For large r the terms without z are large and cancel, so they are computed in double
    precision, whatever the type of the outputs.
    """
    r, count = 1.0 / dispersion, y.double()
    log_ways = torch.lgamma(count + r) - math.lgamma(r) - torch.lgamma(count + 1.0)
    return log_ways.to(logits.dtype) + y * logits - (y + r) * softplus


_TINY = 1e-300
# Relative change at which the continued fraction stops; below about 1e-14 it would be rounding.
_EPS = 1e-12
# About √max(a, b) terms are needed, so this allows counts and 1 / dispersion up to 1e8.
_MOST = 10_000


def incomplete_beta(a: Tensor, b: Tensor, logits: Tensor) -> Tensor:
    """The regularised incomplete beta function `I_x(a, b)`, x = sigmoid(logits), in double.

    By the continued fraction of Press et al. (2007), eq. 6.4.5, which converges fast below
    `x = (a + 1) / (a + b + 2)`; above it `I_x(a, b) = 1 − I_{1−x}(b, a)`.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> incomplete_beta(2 * one, 3 * one, 0 * one)  # 11 / 16
    tensor([0.6875], dtype=torch.float64)
    """
    turned = logits.sigmoid() > (a + 1.0) / (a + b + 2.0)
    a, b = torch.where(turned, b, a), torch.where(turned, a, b)
    logits = torch.where(turned, -logits, logits)
    log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    front = a * functional.logsigmoid(logits) + b * functional.logsigmoid(-logits) - log_beta
    value = front.exp() / a * _continued_fraction(a, b, logits.sigmoid())
    return torch.where(turned, 1.0 - value, value)


def _continued_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """`1 / (1 + d₁ / (1 + d₂ / ...))` by Lentz's method, until it converges."""
    upper = torch.ones_like(x)
    lower = 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = lower
    for m in range(1, _MOST):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            lower = 1.0 / _not_zero(1.0 + term * lower)
            upper = _not_zero(1.0 + term / upper)
            change = upper * lower
            value = value * change
        # A NaN compares as False here, so it does not keep the loop running.
        if not ((change - 1.0).abs() > _EPS).any():
            break
    return value


def _not_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < _TINY, _TINY, x)
