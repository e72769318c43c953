"""Bernoulli and categorical distributions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesrule.families._base import ExponentialFamily, ImproperError, Natural, to_double


class _Chances(ExponentialFamily):
    """Families with `T(x) = x`, so that the expectation parameters are probabilities."""

    @classmethod
    def make(cls, probs: object) -> Self:
        """From the probabilities."""
        return cls.from_expectation(to_double(probs))

    def _check(self) -> None:
        """Every finite λ is proper."""

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """The probability of 1, or of each class."""

    @property
    def expectation(self) -> Natural:
        return (self.probs,)

    def statistics(self, x: Tensor) -> Natural:
        return (x,)


class Bernoulli(_Chances):
    """`P(x = 1) = sigmoid(λ)`, x of 0 or 1: `T(x) = x`, `A = log(1 + e^λ)`.

    Weights of ±1 have half this λ (Khan & Rue 2023, Sec. 4.4).

    >>> Bernoulli.make([0.5]).entropy
    tensor([0.6931])
    """

    parts = ("logit",)
    axes = (0,)

    @property
    def probs(self) -> Tensor:
        return self.natural[0].sigmoid()

    @property
    def log_partition(self) -> Tensor:
        return functional.softplus(self.natural[0])

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        (p,) = expectation
        if not ((p > 0) & (p < 1)).all():
            raise ImproperError("Bernoulli: probabilities lie strictly between 0 and 1.")
        return cls((p.logit(),))

    def sample(self, num: int, generator: Generator) -> Tensor:
        p = self.probs
        return torch.bernoulli(p.expand(num, *p.shape), generator=generator)


class Categorical(_Chances):
    """`P(x = k) = softmax(λ)_k`; x is one-hot, `T(x) = x`, λ (*, K).

    A constant added to λ changes nothing; `normalised` is the λ with A = 0.

    >>> Categorical.make([0.25, 0.75]).expectation[0]
    tensor([0.2500, 0.7500])
    """

    parts = ("logits",)
    axes = (1,)

    @property
    def probs(self) -> Tensor:
        return self.natural[0].softmax(-1)

    @property
    def normalised(self) -> Self:
        return type(self)((self.natural[0].log_softmax(-1),))

    @property
    def log_partition(self) -> Tensor:
        return self.natural[0].logsumexp(-1)

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        (p,) = expectation
        if not ((p > 0).all() and ((p.sum(-1) - 1.0).abs() < 1e-5).all()):
            raise ImproperError("Categorical: probabilities are positive and sum to one.")
        return cls((p.log(),))

    def sample(self, num: int, generator: Generator) -> Tensor:
        p = self.probs
        rows = p.reshape(-1, p.shape[-1])
        drawn = torch.multinomial(rows, num, replacement=True, generator=generator)
        hot = functional.one_hot(drawn.T, p.shape[-1]).to(p.dtype)
        return hot.reshape(num, *p.shape)
