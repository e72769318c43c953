"""Classes, yes-or-no answers and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.distributions import Bernoulli, Categorical, Poisson
from torch.nn import functional

from bayesrule.likelihoods._base import (
    Conditioned,
    Likelihood,
    Marginal,
    match,
    one_vector_per_output,
    per_example,
)
from bayesrule.likelihoods._expectations import expected_logsumexp, expected_softplus
from bayesrule.likelihoods._probabilities import (
    choice,
    class_numbers,
    drawn_class,
    one_output_each,
    pick,
    present,
    within,
)
from bayesrule.types import Params

# torch leaves out targets of this number without a word; none shall have it.
_NO_CLASS = -(1 << 62)


def _shrink(variance: Tensor) -> Tensor:
    """`κ = 1 / √(1 + π s / 8)`: a sigmoid averaged over N(m, s) is close to that of κ m."""
    return (1.0 + math.pi / 8.0 * variance).rsqrt()


def _labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Class numbers, (n,), for logits (n, C)."""
    one_output_each(outputs, "CategoricalLikelihood")
    return class_numbers(outputs, targets, "CategoricalLikelihood")


@dataclass(frozen=True)
class CategoricalLikelihood(Likelihood):
    """`y ~ Categorical(softmax f)`: outputs (n, C) are logits, targets (n,) class numbers.

    The likelihood of classes to start with; for `tagi`, HierarchicalLikelihood often learns
    faster. In `condition` a class of -1 is no label at all; elsewhere it is refused.
    """

    classification = True

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        num = outputs.shape[-1]
        return within(_labels(outputs, targets), num, f"the network has {num} outputs")

    def distribution(self, outputs: Tensor, noise: Params) -> Categorical:
        return Categorical(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        # Whether the classes are among the outputs is seen by torch itself, at no further cost.
        try:
            labels = _labels(outputs, targets)
            return -functional.cross_entropy(
                outputs, labels, reduction="none", ignore_index=_NO_CLASS
            )
        except IndexError:
            self.check(outputs, targets)
            raise

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        return drawn_class(outputs.softmax(-1), generator)

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        # diag p − p pᵀ = Σ_c p_c (e_c − p)(e_c − p)ᵀ
        p = outputs.softmax(-1)
        centred = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) - p.unsqueeze(1)
        return (p.sqrt().unsqueeze(-1) * centred).transpose(0, 1)

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        p = outputs.softmax(-1)
        return p, p * (1.0 - p)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Conditioned:
        # log p(y) ≈ log softmax(κ m)_y, MacKay (1992), and its derivatives in m.
        labels, shrink = _labels(mean, targets), _shrink(variance)
        index, seen = present(labels)
        log_probs = (mean * shrink).log_softmax(-1)
        log_prob = pick(log_probs, index, f"the network has {mean.shape[1]} outputs")
        p, shrink = log_probs.exp(), shrink * seen[:, None]
        right = (labels[:, None] == torch.arange(p.shape[1], device=p.device)).to(p.dtype)
        delta, eta = shrink * (right - p), -(shrink.square() * p * (1.0 - p))
        return Conditioned(delta, eta, torch.where(seen, log_prob, 0.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Tensor:
        there = f"the network has {mean.shape[-1]} outputs"
        return pick(mean, _labels(mean, targets), there) - expected_logsumexp(mean, variance)

    def marginal(self, mean: Tensor, variance: Tensor, noise: Params) -> Marginal:
        found = Categorical(logits=mean * _shrink(variance), validate_args=False)
        p = mean.softmax(-1)
        # The delta method: Σ_j (∂p_c/∂f_j)² s_j with ∂p_c/∂f_j = p_c (1[c = j] − p_j).
        spread = (p.square() * variance).sum(-1, keepdim=True)
        epistemic = p.square() * (variance * (1.0 - 2.0 * p) + spread)
        return choice(found, found.probs, epistemic)


@dataclass(frozen=True)
class BernoulliLikelihood(Likelihood):
    """`y ~ Bernoulli(sigmoid f)`: a logit for each 0/1 target, (n,), (n, 1) or (n, D).

    In `condition` a target of NaN is no answer at all.
    """

    classification = True

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        matched = match(outputs, targets, "BernoulliLikelihood")
        if _is_answer(matched).logical_not().any():
            raise ValueError("BernoulliLikelihood needs targets that are 0 or 1.")
        return matched

    def distribution(self, outputs: Tensor, noise: Params) -> Bernoulli:
        return Bernoulli(logits=outputs, validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        matched = _possible(self, _is_answer, outputs, targets)
        loss = functional.binary_cross_entropy_with_logits(outputs, matched, reduction="none")
        return -per_example(loss)

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        return torch.bernoulli(outputs.sigmoid(), generator=generator)

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        p = outputs.sigmoid()
        return one_vector_per_output((p * (1.0 - p)).sqrt())

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        p = outputs.sigmoid()
        return p, p * (1.0 - p)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Conditioned:
        # log p(y) ≈ log sigmoid(± κ m), MacKay (1992), and its derivatives in m.
        matched = match(mean, targets, "BernoulliLikelihood")
        seen = ~matched.isnan()
        matched = _possible(self, _is_answer, mean, matched.nan_to_num(0.0))
        shrink = _shrink(variance) * seen
        shrunk = mean * shrink
        p = shrunk.sigmoid()
        loss = functional.binary_cross_entropy_with_logits(shrunk, matched, reduction="none")
        eta = -(shrink.square() * p * (1.0 - p))
        return Conditioned(shrink * (matched - p), eta, -per_example(loss * seen))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Tensor:
        matched = _possible(self, _is_answer, mean, targets)
        return per_example(matched * mean - expected_softplus(mean, variance))

    def marginal(self, mean: Tensor, variance: Tensor, noise: Params) -> Marginal:
        found = Bernoulli(logits=mean * _shrink(variance), validate_args=False)
        p = mean.sigmoid()
        return choice(found, found.probs, (p * (1.0 - p)).square() * variance)


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """`y ~ Poisson(exp f)`: a log-rate for each count."""

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        matched = match(outputs, targets, "PoissonLikelihood")
        if _is_count(matched).logical_not().any():
            raise ValueError("PoissonLikelihood needs counts: whole numbers that are not negative.")
        return matched

    def distribution(self, outputs: Tensor, noise: Params) -> Poisson:
        return Poisson(outputs.exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        y = _possible(self, _is_count, outputs, targets)
        return per_example(y * outputs - outputs.exp() - torch.lgamma(y + 1.0))

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        return torch.poisson(outputs.exp(), generator=generator)

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        return one_vector_per_output(torch.exp(0.5 * outputs))

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        rate = outputs.exp()
        return rate, rate

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Tensor:
        # E[exp f] = exp(m + s/2)
        y = _possible(self, _is_count, mean, targets)
        return per_example(y * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(y + 1.0))


def _is_answer(targets: Tensor) -> Tensor:
    return (targets == 0) | (targets == 1)


def _is_count(targets: Tensor) -> Tensor:
    return (targets >= 0) & (targets == targets.round())


def _possible(
    likelihood: Likelihood, good: Callable[[Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> Tensor:
    """Targets that there can be; others are refused, or NaN where asking would make one wait."""
    if targets.device.type == "cpu":
        return likelihood.check(outputs, targets)
    matched = match(outputs, targets, type(likelihood).__name__)
    return matched.masked_fill(good(matched).logical_not(), math.nan)
