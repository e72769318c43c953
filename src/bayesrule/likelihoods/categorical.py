"""Classes behind a softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.likelihoods._base import Conditioned, Marginal
from bayesrule.likelihoods._classes import ClassLikelihood, choice_marginal, one_hot
from bayesrule.likelihoods._expectations import expected_logsumexp
from bayesrule.likelihoods._probit import shrink
from bayesrule.likelihoods._targets import ClassTargets
from bayesrule.types import Params

# torch silently leaves out targets of one number; no class has this one.
_NO_CLASS = -(1 << 62)


@dataclass(frozen=True)
class CategoricalLikelihood(ClassLikelihood):
    """`y ~ Categorical(softmax f)`: outputs (n, C) are logits, targets (n,) class numbers.

    The likelihood of classes to start with; for `tagi`, HierarchicalLikelihood often learns
    faster. In `condition` a class of -1 is no label at all; elsewhere it is refused.
    """

    probit_marginal = True

    def log_probs(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1)

    def distribution(self, outputs: Tensor, state: Params) -> ClassTargets:
        return ClassTargets(outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        labels = self._labels(outputs, targets)
        try:
            loss = functional.cross_entropy(
                outputs, labels, reduction="none", ignore_index=_NO_CLASS
            )
        except IndexError:
            self.check(outputs, targets)
            raise
        return -loss

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        # diag p − p pᵀ = Σ_c p_c (e_c − p)(e_c − p)ᵀ
        p = outputs.softmax(-1)
        centred = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) - p.unsqueeze(1)
        return (p.sqrt().unsqueeze(-1) * centred).transpose(0, 1)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        # log p(y) ≈ log softmax(κ m)_y, MacKay (1992), and its derivatives in m.
        labels, seen = self._observed(mean, targets)
        kappa = shrink(variance)
        log_probs = (mean * kappa).log_softmax(-1)
        log_prob = self._picked(log_probs, labels, mean)
        p, kappa = log_probs.exp(), kappa * seen[:, None]
        delta, eta = kappa * (one_hot(labels, p) - p), -(kappa.square() * p * (1.0 - p))
        return Conditioned(delta, eta, torch.where(seen, log_prob, 0.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        labels = self._labels(mean, targets)
        return self._picked(mean, labels, mean) - expected_logsumexp(mean, variance)

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        p = mean.softmax(-1)
        # The delta method: Σ_j (∂p_c/∂f_j)² s_j with ∂p_c/∂f_j = p_c (1[c = j] − p_j).
        spread = (p.square() * variance).sum(-1, keepdim=True)
        epistemic = p.square() * (variance * (1.0 - 2.0 * p) + spread)
        return _averaged(mean, variance, epistemic)

    def joint_marginal(self, mean: Tensor, covariance: Tensor, state: Params) -> Marginal:
        p = mean.softmax(-1)
        # The delta method: the diagonal of (diag p − p pᵀ) V (diag p − p pᵀ).
        slope = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        epistemic = (slope @ covariance @ slope).diagonal(dim1=-2, dim2=-1)
        return _averaged(mean, covariance.diagonal(dim1=-2, dim2=-1), epistemic)


def _averaged(mean: Tensor, variance: Tensor, epistemic: Tensor) -> Marginal:
    """`E[softmax f] ≈ softmax(κ m)`, MacKay (1992), with the epistemic variance that is given."""
    averaged = ClassTargets(mean * shrink(variance))
    return choice_marginal(averaged, averaged.mean, epistemic)
