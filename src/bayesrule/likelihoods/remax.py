"""Classes as one-hot numbers behind Remax or the closed-form softmax, under Gaussian noise."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._base import Conditioned, Marginal
from bayesrule.likelihoods._classes import choice_marginal, one_hot
from bayesrule.likelihoods._probabilities import ClassProbabilities
from bayesrule.likelihoods._targets import ClassTargets
from bayesrule.moments.softmax import remax_moments, softmax_moments
from bayesrule.types import Params

# What a rectified output is at least; the moments of ReLU have the same floor.
_FLOOR = 1e-6


class _OneHot(ClassProbabilities):
    """One output for each class; one-hot targets are seen through the moments of p(f)."""

    @abstractmethod
    def _probabilities(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and slope `Cov(p, f) / s` of p(f), (n, C) each."""

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        labels, seen = self._observed(mean, targets)
        p, spread, slope = self._probabilities(mean, variance)
        log_prob = torch.where(seen, self._picked(_log(p), labels, mean), 0.0)
        weight = seen.unsqueeze(-1) * slope / (spread + _noise.variance(self.noise, state))
        return Conditioned((one_hot(labels, p) - p) * weight, -slope * weight, log_prob)

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        p, spread, _ = self._probabilities(mean, variance)
        return choice_marginal(ClassTargets(_log(p)), p, spread)


def _log(p: Tensor) -> Tensor:
    """`log p`, finite: however sure and wrong, a label has some probability."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


@dataclass(frozen=True)
class RemaxLikelihood(_OneHot):
    """`p(f) = max(f, 0) / Σ max(f, 0)`: outputs (n, C), targets (n,) class numbers.

    A softmax without exponentials: for `tagi`, its moments are good for wide outputs too, where
    SoftmaxLikelihood's are not. A label is the one-hot code up to `noise`, a standard deviation or
    a schedule; in `condition` a class of -1 is no label at all. An output below zero has no slope,
    so methods that follow gradients may never move it: give them CategoricalLikelihood.
    """

    noise: _noise.Noise = 0.1

    def __post_init__(self) -> None:
        _noise.checked(self.noise)

    def log_probs(self, outputs: Tensor) -> Tensor:
        positive = outputs.clamp_min(_FLOOR)
        return positive.log() - positive.sum(-1, keepdim=True).log()

    def _probabilities(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return remax_moments(mean, variance)


@dataclass(frozen=True)
class SoftmaxLikelihood(_OneHot):
    """`p(f) = softmax f`, seen through its moments: outputs (n, C), targets (n,) class numbers.

    The same p(y | f) as CategoricalLikelihood, which is the one to choose for all methods but
    `tagi`. There, CategoricalLikelihood follows the derivatives of `log p(y)`; this one takes a
    label for the one-hot code up to `noise`, a standard deviation or a schedule, and a class of -1
    for no label at all. Its moments hold for outputs of a variance below about 1: start with
    `tagi(..., gain=0.3)` or less, or use RemaxLikelihood or HierarchicalLikelihood.
    """

    noise: _noise.Noise = 0.1

    def __post_init__(self) -> None:
        _noise.checked(self.noise)

    def log_probs(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1)

    def _probabilities(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return softmax_moments(mean, variance)
