"""Classes with softmax probabilities, and binary answers with sigmoid ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.likelihoods._base import (
    Conditioned,
    ElementwiseLikelihood,
    Marginal,
    one_vector_per_output,
    per_example,
)
from bayesrule.likelihoods._class_weights import by_class, class_weights
from bayesrule.likelihoods._classes import ClassLikelihood, choice_marginal, one_hot
from bayesrule.likelihoods._expectations import expected_logsumexp, expected_softplus
from bayesrule.likelihoods._spread import single_outputs, spread
from bayesrule.likelihoods._targets import BinaryTargets, ClassTargets, match
from bayesrule.types import Params

# torch silently leaves out one class number, `ignore_index`; no class has this one.
_NO_CLASS = -(1 << 62)


def shrink(variance: Tensor) -> Tensor:
    """`κ = 1 / √(1 + π s / 8)`: a sigmoid averaged over N(m, s) is close to `sigmoid(κ m)`.

    MacKay (1992).
    """
    return (1.0 + math.pi / 8.0 * variance).rsqrt()


@dataclass(frozen=True)
class BernoulliLikelihood(ElementwiseLikelihood):
    """`y ~ Bernoulli(sigmoid f)`: a logit for each 0/1 target, (n,), (n, 1) or (n, D).

    In `condition`, NaN marks a missing target.
    """

    distribution_class = BinaryTargets
    probit_marginal = True
    allowed = "targets that are 0 or 1"

    @staticmethod
    def is_allowed(targets: Tensor) -> Tensor:
        return (targets == 0) | (targets == 1)

    def distribution(self, outputs: Tensor, state: Params) -> BinaryTargets:
        return BinaryTargets(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        answers = self._checked(outputs, targets)
        loss = functional.binary_cross_entropy_with_logits(outputs, answers, reduction="none")
        return -per_example(loss)

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        p = outputs.sigmoid()
        return one_vector_per_output((p * (1.0 - p)).sqrt())

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        # log p(y) ≈ log sigmoid(± κ m), MacKay (1992), and its derivatives in m.
        answers = match(mean, targets, "BernoulliLikelihood")
        seen = ~answers.isnan()
        answers = self._checked(mean, answers.nan_to_num(0.0))
        kappa = shrink(variance) * seen
        shrunk = mean * kappa
        p = shrunk.sigmoid()
        loss = functional.binary_cross_entropy_with_logits(shrunk, answers, reduction="none")
        eta = -(kappa.square() * p * (1.0 - p))
        return Conditioned(kappa * (answers - p), eta, -per_example(loss * seen))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        answers = self._checked(mean, targets)
        return per_example(answers * mean - expected_softplus(mean, variance))

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        averaged = BinaryTargets(mean * shrink(variance))
        on_grid = spread(_no_and_yes, mean, single_outputs(mean, variance))
        variance, information = on_grid.within(_no_and_yes(averaged.logits).exp())
        return choice_marginal(averaged, variance[..., 1], information)


def _no_and_yes(logits: Tensor) -> Tensor:
    """The log-probabilities of both answers, (..., 2)."""
    return torch.stack([functional.logsigmoid(-logits), functional.logsigmoid(logits)], dim=-1)


@dataclass(frozen=True)
class CategoricalLikelihood(ClassLikelihood):
    """`y ~ Categorical(softmax f)`: outputs (n, C) are logits, targets (n,) class numbers.

    A sequence has a label at each of T positions: outputs (n, T, C), targets (n, T). It is one
    example, whose loss is the sum over its labels; `ignore_index` marks positions that do not
    count.

    The class likelihood to start with; for `tagi`, HierarchicalLikelihood often learns faster. In
    `condition`, class -1 marks a missing label; elsewhere it is refused.

    - `class_weight`: how often an example of each class counts in the loss, such as (1.0, 5.0).
    - `ignore_index`: the class number of examples that do not count, such as -100.

    Weights do not change predictions: these are for classes at their natural frequencies.
    """

    class_weight: Sequence[float] | None = None
    ignore_index: int | None = None

    stacked_sampling = True
    probit_marginal = True
    calibrates = True
    along_sequences = True

    def __post_init__(self) -> None:
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", class_weights(self.class_weight))
        if not isinstance(self.ignore_index, int | None) or isinstance(self.ignore_index, bool):
            raise TypeError(f"ignore_index is a whole number, got {self.ignore_index!r}.")

    def weighed(self, targets: Tensor) -> Tensor:
        if self.class_weight is None and self.ignore_index is None:
            return targets
        return by_class(targets, self.class_weight, self.ignore_index)

    def _classes(self, outputs: Tensor) -> tuple[int, str]:
        num_classes, in_words = super()._classes(outputs)
        if self.class_weight is not None and len(self.class_weight) != num_classes:
            raise ValueError(
                f"class_weight has {len(self.class_weight)} numbers, but {in_words}: one for each "
                "class."
            )
        return num_classes, in_words

    def log_probs(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1)

    def distribution(self, outputs: Tensor, state: Params) -> ClassTargets:
        return ClassTargets(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        labels = self._labels(outputs, targets)
        try:
            loss = functional.cross_entropy(
                outputs.movedim(-1, 1), labels, reduction="none", ignore_index=_NO_CLASS
            )
        except IndexError:
            self.check(outputs, targets)
            raise
        return -loss

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        # diag p − p pᵀ = Σ_c p_c (e_c − p)(e_c − p)ᵀ
        p = outputs.softmax(-1)
        centred = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) - p.unsqueeze(-2)
        roots = p.sqrt().unsqueeze(-1) * centred
        if p.ndim == 2:
            return roots.transpose(0, 1)
        # Each vector is zero at all positions but one.
        positions = roots.reshape(len(p), -1, *roots.shape[-2:])
        eye = torch.eye(positions.shape[1], dtype=p.dtype, device=p.device)
        return torch.einsum("ts,ntvc->tvnsc", eye, positions).reshape(-1, *p.shape)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        # log p(y) ≈ log softmax(κ m)_y, MacKay (1992), and its derivatives in m.
        labels, seen = self._observed(mean, targets)
        kappa = shrink(variance)
        log_probs = (mean * kappa).log_softmax(-1)
        log_prob = self._picked(log_probs, labels, mean)
        p, kappa = log_probs.exp(), kappa * seen.unsqueeze(-1)
        delta, eta = kappa * (one_hot(labels, p) - p), -(kappa.square() * p * (1.0 - p))
        return Conditioned(delta, eta, torch.where(seen, log_prob, 0.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        labels = self._labels(mean, targets)
        return self._picked(mean, labels, mean) - expected_logsumexp(mean, variance)

    def averaged(self, mean: Tensor, variance: Tensor) -> Tensor:
        # E[softmax f] ≈ softmax(κ m), MacKay (1992).
        return mean * shrink(variance)
