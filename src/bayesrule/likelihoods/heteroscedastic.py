"""Real-valued targets whose noise depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.likelihoods._base import (
    Conditioned,
    Likelihood,
    Marginal,
    one_vector_per_output,
    per_example,
)
from bayesrule.likelihoods._targets import NormalTargets, match
from bayesrule.likelihoods.gaussian import log_normal, normal_marginal
from bayesrule.types import Params


@dataclass(frozen=True)
class HeteroscedasticLikelihood(Likelihood):
    """`y ~ N(f₁, exp f₂)`: the network has two outputs for each target, mean and log-variance.

    Outputs (n, 2D): the first D are means, the last D log-variances. Where outputs are looked at
    one by one (draws, gradients), log-variances are kept within ±`limit`. Where they are Gaussian
    (`condition`, `marginal`, `expected_log_prob`), all of the exponential is averaged over, without
    a limit: a noise variance beyond the largest float number is infinite there.
    """

    limit: float = 20.0

    distribution_class = NormalTargets
    normal_sampling = True

    def num_outputs(self, targets: int) -> int:
        """A mean and a log-variance for each target."""
        return 2 * targets

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return mean, log_variance.clamp(-self.limit, self.limit)

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] % 2:
            raise ValueError(
                "HeteroscedasticLikelihood needs two outputs for each target, a mean and a "
                f"log-variance: (n, 2D). The network gives {tuple(outputs.shape)}."
            )
        return match(outputs.chunk(2, dim=-1)[0], targets, "HeteroscedasticLikelihood")

    def distribution(self, outputs: Tensor, state: Params) -> NormalTargets:
        mean, log_variance = self._split(outputs)
        return NormalTargets(mean, torch.exp(0.5 * log_variance))

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        mean, log_variance = self._split(outputs)
        error = self.check(outputs, targets) - mean
        return per_example(log_normal(error, torch.exp(-log_variance), -log_variance))

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        _, log_variance = self._split(outputs)
        # Fisher of (mean, log-variance): diag(1/σ², ½).
        inner = torch.exp(-0.5 * log_variance)
        return one_vector_per_output(torch.cat([inner, torch.full_like(inner, 0.5**0.5)], dim=-1))

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        """Approximate Gaussian variance inference; Deka, Nguyen & Goulet (2024).

        The noise `V ~ N(0, exp f₂)` given y has the mean `m_V = w (y − f₁)` and the variance
        `μ̃ (1 − w)`, where `μ̃ = E[exp f₂]` and `w = μ̃ / (s₁ + μ̃)`; what its square says of exp f₂ is
        carried on to f₂. Everything is in units of μ̃, so that nothing overflows:

        `q = m_V² / μ̃`, `c = Var[V²] / μ̃² = 3 (exp s₂ − 1) + 2`,
        `δ₂ = (q − w) / c`, `η₂ = (2 (1 − w)² + 4 (1 − w) q) / c² − 1 / c`.
        """
        targets = self.check(mean, targets)
        (centre, log_noise), (spread, s2) = mean.chunk(2, -1), variance.chunk(2, -1)
        seen = ~targets.isnan()
        around = torch.exp(log_noise + 0.5 * s2)
        weight = seen / (spread + around)
        error = torch.where(seen, targets - centre, 0.0)
        share = seen / (1.0 + spread / around)
        left, square, scale = 1.0 - share, share * weight * error.square(), 3.0 * s2.expm1() + 2.0
        eta2 = (2.0 * left.square() + 4.0 * left * square) / scale.square() - 1.0 / scale
        log_prob = torch.where(seen, log_normal(error, weight, weight.log()), 0.0)
        return Conditioned(
            torch.cat([error * weight, (square - share) / scale], dim=-1),
            torch.cat([-weight, torch.where(seen, eta2, 0.0)], dim=-1),
            per_example(log_prob),
        )

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        """`−½ [log 2π + m₂ + ((y − m₁)² + s₁) exp(s₂/2 − m₂)]`."""
        targets = self.check(mean, targets)
        (centre, log_noise), (spread, s2) = mean.chunk(2, -1), variance.chunk(2, -1)
        squares = (targets - centre).square() + spread
        shrunk = squares * torch.exp(0.5 * s2 - log_noise)
        return -0.5 * per_example(math.log(2.0 * math.pi) + log_noise + shrunk)

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        # E[exp f₂] of the Gaussian log-variance is that of a log-normal.
        (centre, log_noise), (spread, s2) = mean.chunk(2, -1), variance.chunk(2, -1)
        return normal_marginal(centre, spread, torch.exp(log_noise + 0.5 * s2))
