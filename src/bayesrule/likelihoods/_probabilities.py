"""Class numbers, and likelihoods that are given by the probability of each class."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Generator, Tensor
from torch.distributions import Categorical, Distribution
from torch.func import jacrev

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._base import Likelihood, Marginal
from bayesrule.types import Params

MISSING = -1
"""The class number of an example without a label, which `condition` learns nothing from."""


def class_numbers(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Integer class numbers, (n,), for outputs (n, *)."""
    if targets.shape != outputs.shape[:1] or targets.is_floating_point():
        raise ValueError(
            f"{kind} needs integer class numbers of shape ({len(outputs)},), "
            f"got {targets.dtype} of shape {tuple(targets.shape)}."
        )
    return targets.long()


def one_output_each(outputs: Tensor, kind: str) -> int:
    """The number of classes where each has its own output, (n, C)."""
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise ValueError(
            f"{kind} needs one output for each class: (n, C) with C ≥ 2. The network gives "
            f"{tuple(outputs.shape)}; for yes or no from one output use BernoulliLikelihood."
        )
    return outputs.shape[1]


def within(labels: Tensor, num_classes: int, there: str) -> Tensor:
    """The class numbers, refused where there is no such class; `there` says what there is."""
    # Elsewhere torch itself refuses them, without making the device wait.
    if labels.device.type == "cpu" and labels.numel():
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"The targets hold class {low if low < 0 else high}, but {there}: classes 0 to "
                f"{num_classes - 1}."
            )
    return labels


def present(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Class numbers with 0 for `MISSING` ones, and which are not missing."""
    seen = labels != MISSING
    return labels.masked_fill(~seen, 0), seen


def pick(log_probs: Tensor, labels: Tensor, there: str) -> Tensor:
    """The log-probability of each label, (n,), from those of all classes (n, K)."""
    # Whether there is such a class is seen by torch itself, at no further cost.
    try:
        return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    except (IndexError, RuntimeError):
        within(labels, log_probs.shape[-1], there)
        raise


def choice(distribution: Distribution, mean: Tensor, epistemic: Tensor) -> Marginal:
    """Yes-or-no answers and one-hot classes, whose whole variance is `p (1 − p)`."""
    total = mean * (1.0 - mean)
    epistemic = torch.minimum(epistemic, total)
    return Marginal(distribution, mean, epistemic, total - epistemic)


def log_cdf(z: Tensor) -> Tensor:
    """`log Φ(z)`; torch's own `log_ndtr` does not work on many networks at once (vmap)."""
    root, low = math.sqrt(0.5), z.clamp_max(-1.0)
    left = (0.5 * torch.special.erfcx(-root * low)).log() - 0.5 * low.square()
    return torch.where(z < -1.0, left, torch.log1p(-0.5 * torch.erfc(root * z.clamp_min(-1.0))))


def hazard(z: Tensor) -> Tensor:
    """`∂ log Φ(z) / ∂z`."""
    return torch.exp(-0.5 * (z.square() + math.log(2.0 * math.pi)) - log_cdf(z))


def drawn_class(p: Tensor, generator: Generator) -> Tensor:
    """A class for each row of probabilities (n, C): the first of C exponential clocks to ring.

    As torch.multinomial does it, but without looking at the numbers, which makes a GPU wait.
    """
    clocks = torch.empty_like(p).exponential_(generator=generator)
    return (p / clocks).argmax(-1)


class ClassProbabilities(Likelihood):
    """`y ~ Categorical(p(f))` for any p, targets (n,) class numbers.

    In `condition` the class is observed as numbers under Gaussian `noise`, a standard deviation or
    a schedule of them, and a class of `MISSING` = -1 is no label at all.
    """

    classification = True
    noise: _noise.Noise

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """`log p(f)` of each class, (..., n, K)."""

    @abstractmethod
    def _classes(self, outputs: Tensor) -> tuple[int, str]:
        """How many classes there are, and that in words; outputs of a wrong shape are refused."""

    def init(self, like: Tensor) -> Params:
        return _noise.init(self.noise, like)

    def update(self, noise: Params, statistics: Params, weight: float) -> Params:
        return _noise.update(self.noise, noise)

    def _labels(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        """The class numbers, and in words which there are."""
        there = self._classes(outputs)[1]
        return class_numbers(outputs, targets, type(self).__name__), there

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels, there = self._labels(outputs, targets)
        return within(labels, self._classes(outputs)[0], there)

    def distribution(self, outputs: Tensor, noise: Params) -> Categorical:
        return Categorical(logits=self.log_probs(outputs), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        labels, there = self._labels(outputs, targets)
        return pick(self.log_probs(outputs), labels, there)

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        return drawn_class(self.log_probs(outputs).exp(), generator)

    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        # Σ_k p_k ∇log p_k ∇log p_kᵀ; examples do not mix, so one sum over them loses nothing.
        outputs = outputs.detach()
        slopes = jacrev(lambda f: self.log_probs(f).sum(0))(outputs)
        return torch.exp(0.5 * self.log_probs(outputs)).mT.unsqueeze(-1) * slopes

    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        p = self.log_probs(outputs).exp()
        return p, p * (1.0 - p)
