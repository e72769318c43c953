"""Count targets, and the Poisson likelihood, whose variance is the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from bayesrule.likelihoods._base import ElementwiseLikelihood, one_vector_per_output, per_example
from bayesrule.likelihoods._targets import TargetDistribution
from bayesrule.types import Params


@dataclass(frozen=True, eq=False)
class PoissonTargets(TargetDistribution):
    """`y ~ Poisson(rate)`."""

    rate: Tensor
    whole_numbers: ClassVar[bool] = True

    @property
    def mean(self) -> Tensor:
        return self.rate

    variance = mean

    def log_prob(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, self.rate) - self.rate - torch.lgamma(y + 1.0)

    def sample(self, generator: Generator) -> Tensor:
        return torch.poisson(self.rate, generator=generator)

    def cdf(self, y: Tensor) -> Tensor:
        # P(Y ≤ k) = Γ(k + 1, rate) / k!
        count, rate = torch.broadcast_tensors(y.floor(), self.rate)
        inside = torch.special.gammaincc((count + 1.0).clamp_min(1e-30), rate)
        return torch.where(count < 0, 0.0, inside)


class CountLikelihood(ElementwiseLikelihood):
    """Targets are counts: 0, 1, 2, ..."""

    allowed = "counts: whole numbers that are not negative"

    @staticmethod
    def is_allowed(targets: Tensor) -> Tensor:
        return (targets >= 0) & (targets == targets.round())


@dataclass(frozen=True)
class PoissonLikelihood(CountLikelihood):
    """`y ~ Poisson(exp f)`: f is a log-rate for each count."""

    distribution_class = PoissonTargets

    def distribution(self, outputs: Tensor, state: Params) -> PoissonTargets:
        return PoissonTargets(outputs.exp())

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        y = self._checked(outputs, targets)
        return per_example(y * outputs - outputs.exp() - torch.lgamma(y + 1.0))

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        return one_vector_per_output(torch.exp(0.5 * outputs))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        # E[exp f] = exp(m + s/2)
        y = self._checked(mean, targets)
        return per_example(y * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(y + 1.0))
