"""Real-valued targets with known, learned or input-dependent noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.distributions import Normal

from bayesrule.likelihoods._base import (
    Conditioned,
    Likelihood,
    Marginal,
    match,
    one_vector_per_output,
    per_example,
)
from bayesrule.types import Params


def _log_normal(error: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    return 0.5 * (log_precision - math.log(2.0 * math.pi) - precision * error.square())


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """`y ~ N(f, noise²)`; without `noise`, its precision τ ~ Gamma(shape, rate) is learned.

    The learned noise is a belief `τ ~ Gamma(a, b)`, one b for each output, moved by the conjugate
    natural-gradient step of size `averaging` towards `a = shape + N/2T` and
    `b = rate + N E[(y − f)²]/2T`; the weights see `E[log N(y | f, 1/τ)]`. Predictions use the noise
    variance b / a.

    >>> GaussianLikelihood(noise=0.1)
    GaussianLikelihood(noise=0.1, shape=6.0, rate=6.0, averaging=0.01)
    """

    noise: float | None = None
    shape: float = 6.0
    rate: float = 6.0
    averaging: float = 0.01

    def __post_init__(self) -> None:
        if self.noise is not None and not (self.noise > 0 and math.isfinite(self.noise)):
            raise ValueError(f"noise is a standard deviation and must be positive: {self.noise}.")
        if not (self.shape > 0 and self.rate > 0):
            raise ValueError(f"Gamma({self.shape}, {self.rate}) needs positive parameters.")

    def init(self, like: Tensor) -> Params:
        if self.noise is not None:
            return {}
        return {"a": like.new_tensor(self.shape), "b": like.new_tensor(self.rate)}

    def statistics(self, outputs: Tensor, targets: Tensor) -> Params:
        if self.noise is not None:
            return {}
        return {"squares": (self.check(outputs, targets) - outputs).square().sum(0)}

    def update(self, noise: Params, statistics: Params, weight: float) -> Params:
        if not noise:
            return noise
        b = self.rate + 0.5 * statistics["squares"]
        old = noise["a"]
        a = torch.full_like(old, self.shape + 0.5 * weight)
        # At the prior there is nothing to average yet, so the conjugate answer is taken at once.
        rate = torch.full_like(old, self.averaging).masked_fill(old == self.shape, 1.0)
        return {"a": old.lerp(a, rate), "b": noise["b"].expand_as(b).lerp(b, rate)}

    def _precision(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        """`E[τ]` and `E[log τ]`."""
        if self.noise is not None:
            precision = outputs.new_tensor(self.noise**-2)
            return precision, precision.log()
        a, b = noise["a"], noise["b"]
        return a / b, torch.digamma(a) - b.log()

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return match(outputs, targets, "GaussianLikelihood")

    def distribution(self, outputs: Tensor, noise: Params) -> Normal:
        precision, _ = self._precision(outputs, noise)
        return Normal(outputs, precision.rsqrt().expand_as(outputs), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        error = self.check(outputs, targets) - outputs
        return per_example(_log_normal(error, *self._precision(outputs, noise)))

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        scale = self.distribution(outputs, noise).scale
        return outputs + scale * torch.empty_like(outputs).normal_(generator=generator)

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        precision, _ = self._precision(outputs, noise)
        return one_vector_per_output(precision.sqrt().expand_as(outputs))

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        return outputs, self.distribution(outputs, noise).scale.square()

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Conditioned:
        targets = self.check(mean, targets)
        seen = ~targets.isnan()
        total = variance + self.distribution(mean, noise).scale.square()
        error = torch.where(seen, targets - mean, 0.0)
        weight = seen / total
        log_prob = 0.5 * (weight.log() - math.log(2.0 * math.pi) - error.square() * weight)
        statistics = {}
        if self.noise is None:
            # The unseen count as if they were just as far off as expected.
            squares = torch.where(seen, error.square() + variance, total)
            statistics["squares"] = squares.sum(0)
        return Conditioned(
            error * weight, -weight, per_example(torch.where(seen, log_prob, 0.0)), statistics
        )

    def marginal(self, mean: Tensor, variance: Tensor, noise: Params) -> Marginal:
        return _normal(mean, variance, self.moments(mean, noise)[1])


def _normal(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Marginal:
    total = (epistemic + aleatoric).sqrt()
    return Marginal(
        Normal(mean, total, validate_args=False), mean, epistemic, aleatoric.expand_as(mean)
    )


@dataclass(frozen=True)
class HeteroscedasticLikelihood(Likelihood):
    """`y ~ N(f₁, exp f₂)`: the network has two outputs for each target, mean and log-variance.

    Outputs (n, 2D): the first D are means, the last D log-variances, kept within ±`limit`.
    """

    limit: float = 20.0

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return mean, log_variance.clamp(-self.limit, self.limit)

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] % 2:
            raise ValueError(
                "HeteroscedasticLikelihood needs two outputs for each target, a mean and a "
                f"log-variance: (n, 2D). The network gives {tuple(outputs.shape)}."
            )
        return match(self._split(outputs)[0], targets, "HeteroscedasticLikelihood")

    def distribution(self, outputs: Tensor, noise: Params) -> Normal:
        mean, log_variance = self._split(outputs)
        return Normal(mean, torch.exp(0.5 * log_variance), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        mean, log_variance = self._split(outputs)
        error = self.check(outputs, targets) - mean
        return per_example(_log_normal(error, torch.exp(-log_variance), -log_variance))

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        mean, log_variance = self._split(outputs)
        white = torch.empty_like(mean).normal_(generator=generator)
        return mean + torch.exp(0.5 * log_variance) * white

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        _, log_variance = self._split(outputs)
        # Fisher of (mean, log-variance): diag(1/σ², ½).
        inner = torch.exp(-0.5 * log_variance)
        return one_vector_per_output(torch.cat([inner, torch.full_like(inner, 0.5**0.5)], dim=-1))

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        mean, log_variance = self._split(outputs)
        return mean, log_variance.exp()

    def marginal(self, mean: Tensor, variance: Tensor, noise: Params) -> Marginal:
        # E[exp f₂] of the Gaussian log-variance is that of a log-normal.
        (centre, log_variance), (spread, v2) = mean.chunk(2, -1), variance.chunk(2, -1)
        return _normal(centre, spread, (log_variance + 0.5 * v2).clamp_max(self.limit).exp())
