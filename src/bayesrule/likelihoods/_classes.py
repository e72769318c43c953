"""Likelihoods whose targets are class numbers, and what they share with binary ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.likelihoods._base import Likelihood, Marginal
from bayesrule.likelihoods._spread import Weighted, draws, root, spread
from bayesrule.likelihoods._targets import ClassTargets, TargetDistribution
from bayesrule.types import Params

MISSING = -1
"""The class number of a missing label, from which `condition` learns nothing."""


class ClassLikelihood(Likelihood):
    """Targets (n,) are class numbers, by default with one output for each class: (n, C).

    With `along_sequences`, an example may have several labels: outputs (n, T, C), targets (n, T).
    """

    distribution_class = ClassTargets
    along_sequences: ClassVar[bool] = False

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """`log p(f)` of each class, (..., n, C)."""

    @abstractmethod
    def averaged(self, mean: Tensor, variance: Tensor) -> Tensor:
        """`log E[p(f)]` of each class for independent outputs f ~ N(mean, variance)."""

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        return self._marginal(mean, variance, draws(mean, partial(torch.mul, variance.sqrt())))

    def joint_marginal(self, mean: Tensor, covariance: Tensor, state: Params) -> Marginal:
        covariance = _per_label(mean, covariance)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        return self._marginal(mean, variance, draws(mean, partial(torch.matmul, root(covariance))))

    def marginal_targets(
        self, mean: Tensor, variance: Tensor, state: Params, *, joint: bool = False
    ) -> ClassTargets:
        # Without the draws that variances and information need.
        if joint:
            variance = _per_label(mean, variance).diagonal(dim1=-2, dim2=-1)
        return ClassTargets(self.averaged(mean, variance))

    def _marginal(self, mean: Tensor, variance: Tensor, outputs: Weighted) -> Marginal:
        distribution = ClassTargets(self.averaged(mean, variance))
        by_draws = spread(self.log_probs, mean, outputs)
        return choice_marginal(distribution, *by_draws.within(distribution.mean))

    def _classes(self, outputs: Tensor) -> tuple[int, str]:
        """The number of classes, and the same in words; refuses outputs of a wrong shape."""
        flat = outputs.ndim == 2 or (self.along_sequences and outputs.ndim > 2)
        if not flat or outputs.shape[-1] < 2:
            raise ValueError(
                f"{type(self).__name__} needs one output for each class: (n, C) with C ≥ 2. The "
                f"network gives {tuple(outputs.shape)}; for yes or no from one output use "
                "BernoulliLikelihood."
            )
        return outputs.shape[-1], f"the network has {outputs.shape[-1]} outputs"

    def _labels(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets as class numbers, after a check of their shape but not of their range.

        Torch itself checks the range where they are used, without making a GPU wait.
        """
        self._classes(outputs)
        wanted = outputs.shape[: -1 if self.along_sequences else 1]
        if targets.shape != wanted or targets.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} needs integer class numbers of shape {tuple(wanted)}, "
                f"got {targets.dtype} of shape {tuple(targets.shape)}.{_way_out(targets)}"
            )
        return targets.long()

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self._labels(outputs, targets)
        num_classes, in_words = self._classes(outputs)
        wrong = class_out_of_range(labels, num_classes)
        if wrong is not None:
            raise ValueError(
                f"The targets hold class {wrong}, but {in_words}: classes 0 to {num_classes - 1}."
                f"{_way_out(labels)}"
            )
        return labels

    def distribution(self, outputs: Tensor, state: Params) -> ClassTargets:
        return ClassTargets(self.log_probs(outputs))

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        labels = self._labels(outputs, targets)
        return self._picked(self.log_probs(outputs), labels, outputs)

    def _picked(self, values: Tensor, labels: Tensor, outputs: Tensor) -> Tensor:
        """Picks the value of each label's class, (n,), from those of all classes, (n, C)."""
        try:
            return values.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        except (IndexError, RuntimeError):
            self.check(outputs, labels)
            raise

    def _observed(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Class numbers, 0 where `MISSING`, and a mask of those that are present."""
        labels = self._labels(outputs, targets)
        seen = labels != MISSING
        return labels.masked_fill(~seen, 0), seen


def class_out_of_range(labels: Tensor, num_classes: int) -> int | None:
    """A label outside 0 to num_classes − 1; None if there is none.

    Always None on a GPU, which would have to wait: there torch itself refuses such labels.
    """
    if labels.device.type != "cpu" or not labels.numel():
        return None
    low, high = int(labels.min()), int(labels.max())
    return low if low < 0 else high if high >= num_classes else None


def _per_label(mean: Tensor, covariance: Tensor) -> Tensor:
    """The covariance of each label's outputs, (n, C, C), or (n, T, C, C) for sequences."""
    if mean.ndim == 2:
        return covariance
    num, *places, classes = mean.shape
    wide = covariance.reshape(num, -1, classes, math.prod(places), classes)
    return wide.diagonal(dim1=1, dim2=3).movedim(-1, 1).reshape(*mean.shape, classes)


def _way_out(targets: Tensor) -> str:
    """What to do about missing labels, if there seem to be some."""
    if not (targets.isnan().any() if targets.is_floating_point() else (targets < 0).any()):
        return ""
    return (
        " A label that is missing is a class number such as -1, with "
        "CategoricalLikelihood(ignore_index=-1), or any one of no weight, br.weighted(labels, w)."
    )


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """The one-hot code (n, C) of class numbers (n,), shaped and typed as `like`."""
    classes = torch.arange(like.shape[-1], device=like.device)
    return (labels.unsqueeze(-1) == classes).to(like.dtype)


def choice_marginal(
    distribution: TargetDistribution, epistemic: Tensor, information: Tensor
) -> Marginal:
    """The predictive of classes and binary answers, whose total variance is `p (1 − p)`."""
    aleatoric = distribution.variance - epistemic
    return Marginal(distribution, distribution.mean, epistemic, aleatoric, information)
