"""Classes as one-hot numbers read straight off the outputs, under Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._base import Conditioned, Marginal
from bayesrule.likelihoods._classes import choice_marginal, one_hot
from bayesrule.likelihoods._probabilities import ClassProbabilities, hazard, log_cdf
from bayesrule.likelihoods._targets import ClassTargets
from bayesrule.types import Params


@dataclass(frozen=True)
class OneHotLikelihood(ClassProbabilities):
    """`p_c(f) ∝ Φ((f_c − ½) / scale)`: outputs (n, C), targets (n,) class numbers.

    For `tagi`: a label says that its own output is 1 and all others are 0, up to `noise` (a
    standard deviation or a schedule), which is exactly Gaussian whatever the outputs' variances
    are. Of the likelihoods of classes it learned fastest on images. In `condition` a class of -1 is
    no label at all. For other methods choose CategoricalLikelihood.
    """

    noise: _noise.Noise = 0.1
    scale: float = 0.15

    def __post_init__(self) -> None:
        _noise.checked(self.noise)
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be positive, got {self.scale}.")

    def log_probs(self, outputs: Tensor) -> Tensor:
        return log_cdf((outputs - 0.5) / self.scale).log_softmax(-1)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        labels, seen = self._observed(mean, targets)
        log_probs = log_cdf(self._scores(mean, variance)).log_softmax(-1)
        log_prob = self._picked(log_probs, labels, mean)
        weight = seen.unsqueeze(-1) / (variance + _noise.variance(self.noise, state))
        delta = (one_hot(labels, mean) - mean) * weight
        return Conditioned(delta, -weight, torch.where(seen, log_prob, 0.0))

    def _scores(self, mean: Tensor, variance: Tensor) -> Tensor:
        # E[Φ(f / c)] = Φ(m / √(c² + s)) is exact; that the normaliser varies too is left out.
        return (mean - 0.5) / (self.scale**2 + variance).sqrt()

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        z = self._scores(mean, variance)
        log_probs = log_cdf(z).log_softmax(-1)
        p = log_probs.exp()
        # To first order Var p_k = Σ_j (∂p_k/∂z_j)² share_j, ∂ log p_k/∂z_j = h_j (1[j = k] − p_j).
        share = hazard(z).square() * variance / (self.scale**2 + variance)
        spread = (p.square() * share).sum(-1, keepdim=True)
        epistemic = p.square() * (share * (1.0 - 2.0 * p) + spread)
        return choice_marginal(ClassTargets(log_probs), p, epistemic)
