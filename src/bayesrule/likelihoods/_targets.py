"""Distributions of targets: one for each target, independent of the others.

A likelihood makes these objects, for given outputs (`distribution`) and with Gaussian outputs
integrated out (`marginal`). Predictions are mixtures of them and compute everything from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesrule.likelihoods import _abilities
from bayesrule.likelihoods._weighted import split
from bayesrule.tensors import randomness


@dataclass(frozen=True, eq=False)
class TargetDistribution(ABC):
    """p(y) of targets (..., n, *); a first axis of K holds the components of a mixture.

    A subclass is a frozen dataclass whose tensors all have that shape (with one more axis for
    classes). `sample`, `cdf` and `rescaled` are optional; a missing one raises and `lacks` says so.
    """

    classification: ClassVar[bool] = False
    """Whether y is a class or a binary answer, and its mean a probability."""
    class_numbers: ClassVar[bool] = False
    """Whether y is the number of one of C classes; means then have an extra axis of length C."""
    whole_numbers: ClassVar[bool] = False
    """Whether y is a count, so that quantiles are whole numbers."""
    gaussian: ClassVar[bool] = False
    """Whether y is Gaussian, so that mean and variance determine its distribution."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean of y, (..., n, *); the probabilities (..., n, C) for class numbers."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance of y (of the one-hot y for class numbers), shaped as the mean."""

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """`log p(y)` of each target, (..., n, *); y may have fewer leading axes."""

    def sample(self, generator: Generator) -> Tensor:
        """One draw of each target, (..., n, *)."""
        raise TypeError(self.lacks("sample"))

    def cdf(self, y: Tensor) -> Tensor:
        """`P(Y ≤ y)` of each target, (..., n, *); y may have fewer leading axes."""
        raise TypeError(self.lacks("cdf"))

    def quantile(self, level: float) -> Tensor:
        """The smallest y with `P(Y ≤ y) ≥ level`, (..., n, *)."""
        return quantile(self.cdf, self.mean, self.variance.sqrt(), level, self.whole_numbers)

    def rescaled(self, shift: Tensor, scale: Tensor) -> Self:
        """The distribution of `shift + scale · y`, scale > 0."""
        raise TypeError(self.lacks("rescaled"))

    @classmethod
    def lacks(cls, ability: str) -> str | None:
        """None if the method `ability` exists, else a sentence that says what is missing."""
        if _abilities.gives(cls, TargetDistribution, ability):
            return None
        return _abilities.sentence(cls.__name__, ability)

    def matched(self, y: Tensor) -> Tensor:
        """y in the shape (n, *) of one component's targets, or a ValueError."""
        return match(self.mean[0], y, "This prediction")

    def __getitem__(self, index: Any) -> Self:
        """Chosen components: all tensors indexed along their first axis."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: x[index] for name, x in parts.items() if isinstance(x, Tensor)}
        return replace(self, **tensors)

    def component_log_probs(self, y: Tensor) -> Tensor:
        """`log p(y_i | f_ki)` for the K components of a mixture, (K, n)."""
        targets, weight = split(y)
        log_probs = self.log_prob(self.matched(targets))
        if weight is not None and weight.ndim > 1:
            # In a sequence, only labels with a weight count; weights of examples are the caller's.
            log_probs = log_probs * (weight > 0)
        return log_probs if log_probs.ndim == 2 else log_probs.flatten(start_dim=2).sum(2)

    def mixture_log_prob(self, y: Tensor) -> Tensor:
        """`log (1/K) Σ_k p(y_i | f_ki)` of each example, (n,)."""
        log_probs = self.component_log_probs(y)
        return log_probs.logsumexp(0) - math.log(len(log_probs))

    def beside(self, others: Sequence[Self]) -> Self:
        """The components of several mixtures, one after another."""
        parts = {
            field.name: [getattr(mixture, field.name) for mixture in (self, *others)]
            for field in fields(self)
        }
        tensors = {name: torch.cat(x) for name, x in parts.items() if isinstance(x[0], Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True, eq=False)
class NormalTargets(TargetDistribution):
    """`y ~ N(loc, scale²)`."""

    loc: Tensor
    scale: Tensor
    gaussian: ClassVar[bool] = True

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def log_prob(self, y: Tensor) -> Tensor:
        z = (y - self.loc) / self.scale
        return -0.5 * (z.square() + math.log(2.0 * math.pi)) - self.scale.log()

    def sample(self, generator: Generator) -> Tensor:
        return self.loc + self.scale * randomness.normal_like(self.loc, generator)

    def cdf(self, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - self.loc) / self.scale)

    def rescaled(self, shift: Tensor, scale: Tensor) -> Self:
        return replace(self, loc=shift + scale * self.loc, scale=scale * self.scale)


@dataclass(frozen=True, eq=False)
class _Choices(TargetDistribution):
    """Targets whose mean is the probability of being 1, and whose variance is `p (1 − p)`."""

    logits: Tensor
    classification: ClassVar[bool] = True

    @property
    def variance(self) -> Tensor:
        return self.mean * (1.0 - self.mean)


@dataclass(frozen=True, eq=False)
class ClassTargets(_Choices):
    """`y ~ Categorical(softmax logits)`, logits (..., n, C), class numbers y (..., n)."""

    class_numbers: ClassVar[bool] = True

    @cached_property
    def mean(self) -> Tensor:
        return self.logits.softmax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        index = y.long().expand(self.logits.shape[:-1]).unsqueeze(-1)
        return self.logits.log_softmax(-1).gather(-1, index).squeeze(-1)

    def sample(self, generator: Generator) -> Tensor:
        # The argmin of C exponential variables of rates p, as in torch.multinomial, but without its
        # check of the probabilities, which would make a GPU wait.
        clocks = randomness.exponential_like(self.logits, generator)
        return (self.logits - clocks.log_()).argmax(-1)

    def matched(self, y: Tensor) -> Tensor:
        wanted = self.logits.shape[1:-1]
        if y.shape != wanted:
            raise ValueError(
                f"This prediction needs class numbers of shape {tuple(wanted)}, got "
                f"{tuple(y.shape)}."
            )
        return y


@dataclass(frozen=True, eq=False)
class BinaryTargets(_Choices):
    """`y ~ Bernoulli(sigmoid logits)`: a binary answer, 1 or 0, for each logit."""

    @cached_property
    def mean(self) -> Tensor:
        return self.logits.sigmoid()

    def log_prob(self, y: Tensor) -> Tensor:
        answers, logits = torch.broadcast_tensors(y.to(self.logits.dtype), self.logits)
        return -functional.binary_cross_entropy_with_logits(logits, answers, reduction="none")

    def sample(self, generator: Generator) -> Tensor:
        return torch.bernoulli(self.mean, generator=generator)


def match(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Real-valued targets in the shape of the outputs; (n,) and (n, 1) are interchangeable."""
    if targets.shape == outputs.shape:
        return targets.to(outputs.dtype)
    shapes = {tuple(outputs.shape), tuple(targets.shape)}
    if shapes == {(len(outputs),), (len(outputs), 1)}:
        return targets.reshape(outputs.shape).to(outputs.dtype)
    raise ValueError(
        f"{kind} needs targets of the shape of the network's outputs {tuple(outputs.shape)}, got "
        f"{tuple(targets.shape)}."
    )


def quantile(
    cdf: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, level: float, whole_numbers: bool
) -> Tensor:
    """The smallest y with `cdf(y) ≥ level`, shaped as the mean, by bisection.

    By Chebyshev's inequality it lies within `std / √min(level, 1 − level)` of the mean.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"A quantile's level lies strictly between 0 and 1, got {level}.")
    reach = (std * max(10.0, min(level, 1.0 - level) ** -0.5)).clamp_min(1e-30)
    low, high = mean - reach, mean + reach
    if whole_numbers:
        low, high = low.floor(), high.ceil()
    for _ in range(100):
        middle = 0.5 * (low + high)
        if whole_numbers:
            if not (high - low > 1.0).any():
                break
            middle = middle.floor()
        below = cdf(middle) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high if whole_numbers else 0.5 * (low + high)
