"""Real-valued targets whose noise is the same everywhere: known, scheduled or learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._base import (
    Conditioned,
    Likelihood,
    Marginal,
    one_vector_per_output,
    per_example,
)
from bayesrule.likelihoods._targets import NormalTargets, match
from bayesrule.types import Params


def log_normal(error: Tensor, precision: Tensor, log_precision: Tensor) -> Tensor:
    """`log N(error | 0, 1 / precision)`, elementwise."""
    return 0.5 * (log_precision - math.log(2.0 * math.pi) - precision * error.square())


def normal_marginal(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Marginal:
    """Gaussian outputs under Gaussian noise, whose variances add up."""
    distribution = NormalTargets(mean, (epistemic + aleatoric).sqrt())
    return Marginal(distribution, mean, epistemic, aleatoric.expand_as(mean))


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """`y ~ N(f, noise²)`; without `noise`, its precision τ ~ Gamma(shape, rate) is learned.

    `noise` is a standard deviation, or a schedule from the step to one:
    `schedules.piecewise(1.0, {100: 0.5, 200: 0.5})` halves it twice.

    The learned noise is a belief `τ ~ Gamma(a, b)`, one b for each output, moved by the conjugate
    natural-gradient step of size `averaging` towards `a = shape + N/2T` and
    `b = rate + N E[(y − f)²]/2T`; the weights see `E[log N(y | f, 1/τ)]`. Predictions use the noise
    variance b / a.

    In `condition` a target of NaN is missing: it teaches nothing and is not counted in N. During
    the first pass over the data, until a has grown to `shape + N/2T`, each batch adds its number of
    targets and its squares `E[(y − f)² | y]` to the belief, and has a say of at least `averaging`
    in b / a. Later passes see data that f has learned from already, and average as above.

    >>> GaussianLikelihood(noise=0.1)
    GaussianLikelihood(noise=0.1, shape=6.0, rate=6.0, averaging=0.01)
    """

    noise: _noise.Noise | None = None
    shape: float = 6.0
    rate: float = 6.0
    averaging: float = 0.01

    distribution_class = NormalTargets
    normal_sampling = True

    def __post_init__(self) -> None:
        if self.noise is not None:
            _noise.checked(self.noise)
        if not (self.shape > 0 and self.rate > 0):
            raise ValueError(f"Gamma({self.shape}, {self.rate}) needs positive parameters.")

    @property
    def learns(self) -> bool:
        return self.noise is None

    def init(self, like: Tensor) -> Params:
        if self.noise is not None:
            return _noise.init(self.noise, like)
        return {"a": like.new_tensor(self.shape), "b": like.new_tensor(self.rate)}

    def statistics(self, outputs: Tensor, targets: Tensor) -> Params:
        if self.noise is not None:
            return {}
        return {"squares": (self.check(outputs, targets) - outputs).square().sum(0)}

    def update(self, state: Params, statistics: Params, weight: float) -> Params:
        if self.noise is not None:
            return _noise.update(self.noise, state)
        if "again" in statistics:
            return self._counted(state, statistics)
        b = self.rate + 0.5 * statistics["squares"]
        old = state["a"]
        a = torch.zeros_like(old) + (self.shape + 0.5 * weight)
        # At the prior there is nothing to average yet, so the conjugate answer is taken at once.
        rate = torch.full_like(old, self.averaging).masked_fill(old == self.shape, 1.0)
        return {"a": old.lerp(a, rate), "b": state["b"].expand_as(b).lerp(b, rate)}

    def _counted(self, state: Params, statistics: Params) -> Params:
        """After a batch whose targets were counted: each output has its own number."""
        count = statistics["count"]
        a, b = state["a"].expand_as(count), state["b"].expand_as(count)
        whole = self.shape + 0.5 * count
        # How many such batches make up the data; none where all targets are missing.
        batches = torch.where(statistics["batches"] > 0, statistics["batches"], 1.0)
        more = 0.5 * count / batches
        grown = a + more
        # What was believed while the weights knew little is forgotten as fast as by averaging.
        weight = (more / grown).clamp_min(self.averaging)
        added = grown * (b / a).lerp(statistics["squares"] / count, weight)
        rate = self.averaging * (count > 0).to(count.dtype)
        mixed = b.lerp(self.rate + 0.5 * statistics["again"], rate)
        new = a < (1.0 - 1e-5) * whole
        return {
            "a": torch.where(new, grown, a.lerp(whole, rate)),
            "b": torch.where(new, added, mixed),
        }

    def _precision(self, outputs: Tensor, state: Params) -> tuple[Tensor, Tensor]:
        """`E[τ]` and `E[log τ]`."""
        if self.noise is not None:
            precision = 1.0 / _noise.variance(self.noise, state)
            if not isinstance(precision, Tensor):
                # Written on the device itself: a copy to it cannot be part of a CUDA graph.
                precision = torch.full((), precision, dtype=outputs.dtype, device=outputs.device)
            return precision, precision.log()
        a, b = state["a"], state["b"]
        return a / b, torch.digamma(a) - b.log()

    def _variance(self, state: Params) -> Tensor | float:
        """The noise variance of predictions."""
        if self.noise is not None:
            return _noise.variance(self.noise, state)
        return state["b"] / state["a"]

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return match(outputs, targets, "GaussianLikelihood")

    def distribution(self, outputs: Tensor, state: Params) -> NormalTargets:
        precision, _ = self._precision(outputs, state)
        return NormalTargets(outputs, precision.rsqrt().expand_as(outputs))

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        error = self.check(outputs, targets) - outputs
        return per_example(log_normal(error, *self._precision(outputs, state)))

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        precision, _ = self._precision(outputs, state)
        return one_vector_per_output(precision.sqrt().expand_as(outputs))

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        targets, around = self.check(mean, targets), self._variance(state)
        seen = ~targets.isnan()
        error, weight = torch.where(seen, targets - mean, 0.0), seen / (variance + around)
        log_prob = torch.where(seen, log_normal(error, weight, weight.log()), 0.0)
        statistics = {}
        if self.learns:
            statistics = _squares(error, variance, around, seen.to(mean.dtype))
        return Conditioned(error * weight, -weight, per_example(log_prob), statistics)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        # E[(y − f)²] = (y − m)² + s
        precision, log_precision = self._precision(mean, state)
        error = self.check(mean, targets) - mean
        values = log_normal(error, precision, log_precision) - 0.5 * precision * variance
        return per_example(values)

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        return normal_marginal(mean, variance, self.distribution(mean, state).variance)


def _squares(error: Tensor, variance: Tensor, around: Tensor | float, seen: Tensor) -> Params:
    """Sums over the batch of `E[(y − f)²]`, for new targets and for those seen before.

    `squares` is given y, for an f that has not learned from y yet; `again` is for one that has.
    `count` is the number of targets, `batches` 1 where there are any.
    """
    share = around * seen / (variance + around)
    first = (share * error).square() + around * (seen - share)
    count = seen.sum(0)
    return {
        "squares": first.sum(0),
        "again": (error.square() + seen * variance).sum(0),
        "count": count,
        "batches": count.clamp_max(1.0),
    }
