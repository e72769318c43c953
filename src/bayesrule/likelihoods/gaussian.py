"""Real-valued targets whose noise is the same everywhere, or depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods._base import (
    Conditioned,
    Likelihood,
    Marginal,
    one_vector_per_output,
    per_example,
)
from bayesrule.likelihoods._noise import Noise, Noisy
from bayesrule.likelihoods._targets import NormalTargets, match
from bayesrule.likelihoods._uncertain import EXAMPLE_WEIGHT, TARGET_VARIANCE, observed
from bayesrule.likelihoods._weighted import times
from bayesrule.moments import GaussianTensor
from bayesrule.types import Number, Params


def log_normal(error: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    """`log N(error | 0, 1 / precision)`, elementwise."""
    return 0.5 * (log_precision - math.log(2.0 * math.pi) - precision * error.square())


def normal_marginal(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Marginal:
    """The predictive of Gaussian outputs under Gaussian noise: their variances add up."""
    distribution = NormalTargets(mean, (epistemic + aleatoric).sqrt())
    return Marginal(distribution, mean, epistemic, aleatoric.expand_as(mean))


@dataclass(frozen=True)
class GaussianLikelihood(Noisy, Likelihood):
    """`y ~ N(f, noise²)`; without `noise`, its precision τ ~ Gamma(shape, rate) is learned.

    `noise` is a standard deviation, or a schedule that maps a step to one:
    `schedules.piecewise(1.0, {100: 0.5, 200: 0.5})` halves it twice.

    The posterior of a learned noise is `τ ~ Gamma(a, b)`, with one b for each output. A conjugate
    natural-gradient step of size `averaging` moves it towards `a = shape + N/2` and
    `b = rate + N E[(y − f)²]/2`, whatever the temperature. The weights learn from
    `E[log N(y | f, 1/τ)]`. Predictions use the noise variance b / a.

    In `condition`, NaN marks a missing target, which teaches nothing and does not count in N.
    During the first pass over the data, until a has grown to `shape + N/2`, each batch adds its
    number of targets and its squares `E[(y − f)² | y]` to the posterior, with a weight of at least
    `averaging` in b / a. In later passes f has already learned from the data, and steps average as
    above.

    A target may have a variance v of its own, `br.uncertain(y, v)`: `y ~ N(f, noise² + v)`. A
    learned noise then treats the target without its error as a hidden Gaussian and learns from its
    expected squares.

    >>> GaussianLikelihood(noise=0.1)
    GaussianLikelihood(noise=0.1, shape=6.0, rate=6.0, averaging=0.01)
    """

    noise: Noise | None = None  # type: ignore[assignment]
    shape: float = 6.0
    rate: float = 6.0
    averaging: float = 0.01

    distribution_class = NormalTargets
    stacked_sampling = True
    uncertain_targets = True

    def __post_init__(self) -> None:
        if self.noise is not None:
            super().__post_init__()
        if not (self.shape > 0 and self.rate > 0):
            raise ValueError(f"Gamma({self.shape}, {self.rate}) needs positive parameters.")

    @property
    def learns(self) -> bool:
        return self.noise is None

    @property
    def widens(self) -> bool:
        return self.learns

    def widened(self, state: Params, factor: Tensor | float) -> Params:
        return {**state, "b": state["b"] * factor} if self.learns else state

    def init(self, like: Tensor) -> Params:
        if self.noise is not None:
            return super().init(like)
        return {"a": like.new_tensor(self.shape), "b": like.new_tensor(self.rate)}

    def statistics(self, outputs: Tensor, targets: Tensor) -> Params:
        if self.noise is not None:
            return {}
        return {"squares": (self.check(outputs, targets) - outputs).square().sum(0)}

    def expected_statistics(self, outputs: Tensor, targets: Tensor, state: Params) -> Params:
        targets, extras = observed(self.check(outputs, targets), state)
        own, weight = extras.get(TARGET_VARIANCE, 0.0), extras.get(EXAMPLE_WEIGHT)
        if not self.learns or not {TARGET_VARIANCE, EXAMPLE_WEIGHT} & extras.keys():
            return self.statistics(outputs, targets)
        share, left = _shares(self.noise_variance(state), own)
        squares = times((share * (targets - outputs)).square() + left, weight).sum(0)
        return {"squares": squares, **({} if weight is None else {"count": weight.sum(0)})}

    def update(self, state: Params, statistics: Params, weight: Number) -> Params:
        if self.noise is not None:
            return super().update(state, statistics, weight)
        if "again" in statistics:
            return self._counted(state, statistics)
        # With weighted examples, the statistics hold the number of data.
        weight = statistics.get("count", weight)
        b = self.rate + 0.5 * statistics["squares"]
        old = state["a"]
        a = torch.zeros_like(old) + (self.shape + 0.5 * weight)
        # At the prior there is nothing to average yet: take the conjugate posterior at once.
        rate = torch.full_like(old, self.averaging).masked_fill(old == self.shape, 1.0)
        return {"a": old.lerp(a, rate), "b": state["b"].expand_as(b).lerp(b, rate)}

    def kl(self, state: Params) -> Tensor | float:
        if self.noise is not None:
            return 0.0
        # KL(Gamma(a, b) ‖ Gamma(a₀, b₀)), summed over the outputs.
        a, b = torch.broadcast_tensors(state["a"], state["b"])
        shapes = (a - self.shape) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(self.shape)
        rates = self.shape * torch.log(b / self.rate) + a * (self.rate - b) / b
        return (shapes + rates).sum()

    def _counted(self, state: Params, statistics: Params) -> Params:
        """The state after a batch of `condition`, which counts the targets of each output."""
        count = statistics["count"]
        a, b = state["a"].expand_as(count), state["b"].expand_as(count)
        whole = self.shape + 0.5 * count
        # How many such batches make up the data; zero if all targets are missing.
        batches = torch.where(statistics["batches"] > 0, statistics["batches"], 1.0)
        more = 0.5 * count / batches
        grown = a + more
        # Early estimates, made while the weights knew little, fade as fast as by averaging.
        weight = (more / grown).clamp_min(self.averaging)
        added = grown * (b / a).lerp(statistics["squares"] / count, weight)
        rate = self.averaging * (count > 0).to(count.dtype)
        mixed = b.lerp(self.rate + 0.5 * statistics["again"], rate)
        first_pass = a < (1.0 - 1e-5) * whole
        return {
            "a": torch.where(first_pass, grown, a.lerp(whole, rate)),
            "b": torch.where(first_pass, added, mixed),
        }

    def _precision(self, outputs: Tensor, state: Params) -> tuple[Tensor, Tensor]:
        """`E[τ]` and `E[log τ]`; for targets of variance v, `1 / (1 / E[τ] + v)` and its log.

        The gap between `E[log τ]` and `log E[τ]` stays. Then `log_prob` is the largest bound on the
        evidence of y in which the target without its error is a hidden Gaussian.
        """
        precision, log_precision = self._noise_precision(outputs, state)
        if TARGET_VARIANCE not in state:
            return precision, log_precision
        share = 1.0 / (1.0 + precision * match(outputs, state[TARGET_VARIANCE], "The variance"))
        return precision * share, log_precision + share.log()

    def _noise_precision(self, outputs: Tensor, state: Params) -> tuple[Tensor, Tensor]:
        """`E[τ]` and `E[log τ]`."""
        if self.noise is not None:
            precision = 1.0 / self.noise_variance(state)
            if not isinstance(precision, Tensor):
                # Created on the device: a copy from the CPU cannot be part of a CUDA graph.
                precision = torch.full((), precision, dtype=outputs.dtype, device=outputs.device)
            return precision, precision.log()
        a, b = state["a"], state["b"]
        return a / b, torch.digamma(a) - b.log()

    def noise_variance(self, state: Params) -> Tensor | float:
        return state["b"] / state["a"] if self.noise is None else super().noise_variance(state)

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(targets, GaussianTensor):
            mean = match(outputs, targets.centre, "GaussianLikelihood")
            return GaussianTensor(mean, match(outputs, targets.variance, "GaussianLikelihood"))
        return match(outputs, targets, "GaussianLikelihood")

    def distribution(self, outputs: Tensor, state: Params) -> NormalTargets:
        precision, _ = self._precision(outputs, state)
        return NormalTargets(outputs, precision.rsqrt().expand_as(outputs))

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        targets, state = observed(self.check(outputs, targets), state)
        return per_example(log_normal(targets - outputs, *self._precision(outputs, state)))

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        precision, _ = self._precision(outputs, state)
        return one_vector_per_output(precision.sqrt().expand_as(outputs))

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        noise = self.noise_variance(state)
        targets, state = observed(self.check(mean, targets), state)
        own = state.get(TARGET_VARIANCE, 0.0)
        seen = ~targets.isnan()
        error, weight = torch.where(seen, targets - mean, 0.0), seen / (variance + own + noise)
        log_prob = torch.where(seen, log_normal(error, weight, weight.log()), 0.0)
        statistics = {}
        if self.learns:
            count = times(seen.to(mean.dtype), state.get(EXAMPLE_WEIGHT))
            statistics = _squares(error, variance, own, noise, seen.to(mean.dtype), count)
        return Conditioned(error * weight, -weight, per_example(log_prob), statistics)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        # E[(y − f)²] = (y − m)² + s
        targets, state = observed(self.check(mean, targets), state)
        precision, log_precision = self._precision(mean, state)
        values = log_normal(targets - mean, precision, log_precision) - 0.5 * precision * variance
        return per_example(values)

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        return normal_marginal(mean, variance, self.distribution(mean, state).variance)


def _shares(noise: Tensor | float, own: Tensor | float) -> tuple[Any, Any]:
    """The noise's share of a known error y − f, and the variance that the noise then has left.

    `noise` is the variance of the noise, `own` that of y itself.
    """
    share = noise / (noise + own)
    return share, noise * (1.0 - share)


def _squares(
    error: Tensor,
    variance: Tensor,
    own: Tensor | float,
    noise: Tensor | float,
    seen: Tensor,
    times: Tensor,
) -> Params:
    """Sums over the batch of `E[(y − f)²]`, for targets seen first and for those seen again.

    The noise is meant, without the error of a target that has a variance of its `own`. `squares`
    is given y, for an f that has not learned from y yet; `again` is for an f that has. `count` is
    the number of targets, each counted `times`; `batches` is 1 for outputs that have any.
    """
    share = noise * seen / (variance + own + noise)
    noise_share, left = _shares(noise, own)
    first = (share * error).square() + noise * (seen - share)
    count = times.sum(0)
    again = noise_share**2 * (error.square() + variance) + left
    return {
        "squares": (times * first).sum(0),
        "again": (times * again).sum(0),
        "count": count,
        "batches": (count > 0).to(count.dtype),
    }


@dataclass(frozen=True)
class HeteroscedasticLikelihood(Likelihood):
    """`y ~ N(f₁, exp f₂)`: the network has two outputs for each target, mean and log-variance.

    Outputs (n, 2D): the first D are means, the last D log-variances. For single values of the
    outputs (draws, gradients), log-variances are clamped to ±`limit`. For Gaussian outputs
    (`condition`, `marginal`, `expected_log_prob`) the exponential is averaged without a limit: a
    noise variance beyond the largest float is infinite there.
    """

    limit: float = 20.0

    distribution_class = NormalTargets
    stacked_sampling = True

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

        The noise `V ~ N(0, exp f₂)` given y has mean `m_V = w (y − f₁)` and variance `μ̃ (1 − w)`,
        where `μ̃ = E[exp f₂]` and `w = μ̃ / (s₁ + μ̃)`. Its square updates exp f₂, and that f₂.
        Everything is in units of μ̃, so that nothing overflows:

        `q = m_V² / μ̃`, `c = Var[V²] / μ̃² = 3 (exp s₂ − 1) + 2`,
        `δ₂ = (q − w) / c`, `η₂ = (2 (1 − w)² + 4 (1 − w) q) / c² − 1 / c`.
        """
        targets = self.check(mean, targets)
        (centre, log_noise), (spread, s2) = mean.chunk(2, -1), variance.chunk(2, -1)
        seen = ~targets.isnan()
        noise = torch.exp(log_noise + 0.5 * s2)
        weight = seen / (spread + noise)
        error = torch.where(seen, targets - centre, 0.0)
        share = seen / (1.0 + spread / noise)
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
        # exp f₂ of the Gaussian log-variance f₂ is log-normal.
        (centre, log_noise), (spread, s2) = mean.chunk(2, -1), variance.chunk(2, -1)
        return normal_marginal(centre, spread, torch.exp(log_noise + 0.5 * s2))
