"""Likelihoods with one output for each target, of which not every number can be a target."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from bayesrule.likelihoods._base import Likelihood
from bayesrule.likelihoods._targets import match


class ElementwiseLikelihood(Likelihood):
    """One output for each target: (n,), (n, 1) or (n, D)."""

    allowed: ClassVar[str]
    """In words, which targets there can be."""

    @staticmethod
    @abstractmethod
    def is_allowed(targets: Tensor) -> Tensor:
        """Which targets can be, elementwise."""

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        matched = match(outputs, targets, type(self).__name__)
        if not self.is_allowed(matched).all():
            raise ValueError(f"{type(self).__name__} needs {self.allowed}.")
        return matched

    def _checked(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As `check` on the CPU; on a GPU, which would have to wait, NaN for impossible targets."""
        if targets.device.type == "cpu":
            return self.check(outputs, targets)
        matched = match(outputs, targets, type(self).__name__)
        return matched.masked_fill(self.is_allowed(matched).logical_not(), math.nan)


class CountLikelihood(ElementwiseLikelihood):
    """Targets are counts: 0, 1, 2, ..."""

    allowed = "counts: whole numbers that are not negative"

    @staticmethod
    def is_allowed(targets: Tensor) -> Tensor:
        return (targets >= 0) & (targets == targets.round())
