"""Yes-or-no answers behind a sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from bayesrule.likelihoods._base import Conditioned, Marginal, one_vector_per_output, per_example
from bayesrule.likelihoods._classes import choice_marginal
from bayesrule.likelihoods._elementwise import ElementwiseLikelihood
from bayesrule.likelihoods._expectations import expected_softplus
from bayesrule.likelihoods._probit import shrink
from bayesrule.likelihoods._targets import BinaryTargets, match
from bayesrule.types import Params


@dataclass(frozen=True)
class BernoulliLikelihood(ElementwiseLikelihood):
    """`y ~ Bernoulli(sigmoid f)`: a logit for each 0/1 target, (n,), (n, 1) or (n, D).

    In `condition` a target of NaN is no answer at all.
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
        p = mean.sigmoid()
        # The delta method: (∂p/∂f)² s with ∂p/∂f = p (1 − p).
        return choice_marginal(averaged, averaged.mean, (p * (1.0 - p)).square() * variance)
