"""Likelihoods of classes that are given by the probability of each class."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._classes import ClassLikelihood
from bayesrule.types import Params


def log_cdf(z: Tensor) -> Tensor:
    """`log Φ(z)`; torch's own `log_ndtr` does not work on many networks at once (vmap)."""
    root, low = math.sqrt(0.5), z.clamp_max(-1.0)
    left = (0.5 * torch.special.erfcx(-root * low)).log() - 0.5 * low.square()
    return torch.where(z < -1.0, left, torch.log1p(-0.5 * torch.erfc(root * z.clamp_min(-1.0))))


def hazard(z: Tensor) -> Tensor:
    """`∂ log Φ(z) / ∂z`."""
    return torch.exp(-0.5 * (z.square() + math.log(2.0 * math.pi)) - log_cdf(z))


class ClassProbabilities(ClassLikelihood):
    """`y ~ Categorical(p(f))` for any p, targets (n,) class numbers.

    In `condition` the class is observed as numbers under Gaussian `noise`, a standard deviation or
    a schedule of them, and a class of `MISSING` = -1 is no label at all.
    """

    noise: _noise.Noise

    def init(self, like: Tensor) -> Params:
        return _noise.init(self.noise, like)

    def update(self, state: Params, statistics: Params, weight: float) -> Params:
        return _noise.update(self.noise, state)

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        # Σ_k p_k ∇log p_k ∇log p_kᵀ; examples do not mix, so one sum over them loses nothing.
        outputs = outputs.detach()
        slopes = jacrev(lambda f: self.log_probs(f).sum(0))(outputs)
        return torch.exp(0.5 * self.log_probs(outputs)).mT.unsqueeze(-1) * slopes
