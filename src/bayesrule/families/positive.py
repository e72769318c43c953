"""Distributions of rates, probabilities and proportions: Gamma, Beta and Dirichlet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Generator, Tensor

from bayesrule.families._base import ExponentialFamily, Natural, to_double


class Gamma(ExponentialFamily):
    """`Gamma(a, b)` with rate b: `T(x) = (log x, x)`, `λ = (a − 1, −b)`.

    >>> Gamma.make(shape=3.0, rate=2.0).expectation[1]
    tensor(1.5000)
    """

    parts = ("shape − 1", "−rate")
    axes = (0, 0)

    @classmethod
    def make(cls, shape: object, rate: object) -> Self:
        """From shape a and rate b."""
        a, b = torch.broadcast_tensors(*to_double(shape, rate))
        return cls((a - 1.0, -b))

    def _check(self) -> None:
        self._refuse(self.natural[0] > -1, "the shape must be positive (λ₁ > −1)")
        self._refuse(self.natural[1] < 0, "the rate must be positive (λ₂ < 0)")

    @property
    def shape(self) -> Tensor:
        return self.natural[0] + 1.0

    @property
    def rate(self) -> Tensor:
        return -self.natural[1]

    @property
    def mean(self) -> Tensor:
        return self.shape / self.rate

    @property
    def log_partition(self) -> Tensor:
        return torch.lgamma(self.shape) - self.shape * self.rate.log()

    @property
    def expectation(self) -> Natural:
        return torch.digamma(self.shape) - self.rate.log(), self.mean

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        log, mean = expectation
        gap = mean.log() - log  # log a − ψ(a), positive by Jensen
        start = (3.0 - gap + ((gap - 3.0).square() + 24.0 * gap).sqrt()) / (12.0 * gap)
        shape = rising_root(
            start, lambda a: (gap - a.log() + a.digamma(), a.polygamma(1) - 1.0 / a)
        )
        return cls.make(shape, shape / mean)

    def statistics(self, x: Tensor) -> Natural:
        return x.log(), x

    def sample(self, num: int, generator: Generator) -> Tensor:
        return gammas(self.shape, num, generator) / self.rate


class Dirichlet(ExponentialFamily):
    """`Dirichlet(α)` of proportions that sum to one: `T(x) = log x`, `λ = α − 1`, (*, K).

    >>> Dirichlet.make([1.0, 1.0, 1.0]).log_prob(torch.tensor([0.2, 0.3, 0.5])).exp()
    tensor(2.)
    """

    parts = ("concentration − 1",)
    axes = (1,)

    @classmethod
    def make(cls, concentration: object) -> Self:
        """From the concentration α."""
        return cls((to_double(concentration)[0] - 1.0,))

    def _check(self) -> None:
        self._refuse(self.natural[0] > -1, "concentrations must be positive (λ > −1)")

    @property
    def concentration(self) -> Tensor:
        return self.natural[0] + 1.0

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def log_partition(self) -> Tensor:
        a = self.concentration
        return torch.lgamma(a).sum(-1) - torch.lgamma(a.sum(-1))

    @property
    def expectation(self) -> Natural:
        a = self.concentration
        return (torch.digamma(a) - torch.digamma(a.sum(-1, keepdim=True)),)

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        """By Newton's method with a Hessian of diagonal plus rank one; Minka (2000), eq. 15."""
        (log,) = expectation
        # Minka's fixed point brings any start close to the root; Newton's method does the rest.
        a = torch.ones_like(log)
        for _ in range(50):
            a = inverse_digamma(log + torch.digamma(a.sum(-1, keepdim=True)))
        for _ in range(50):
            total = a.sum(-1, keepdim=True)
            gradient = log - torch.digamma(a) + torch.digamma(total)
            q, z = -torch.polygamma(1, a), torch.polygamma(1, total)
            b = (gradient / q).sum(-1, keepdim=True) / (1.0 / z + (1.0 / q).sum(-1, keepdim=True))
            step = (gradient - b) / q
            a = torch.where(a > step, a - step, 0.5 * a)
            if (step.abs() <= 1e-13 * a).all():
                break
        return cls.make(a)

    def statistics(self, x: Tensor) -> Natural:
        return (x.log(),)

    def sample(self, num: int, generator: Generator) -> Tensor:
        drawn = gammas(self.concentration, num, generator)
        return drawn / drawn.sum(-1, keepdim=True)


class Beta(ExponentialFamily):
    """`Beta(a, b)` of one probability: `T(x) = (log x, log(1 − x))`, `λ = (a − 1, b − 1)`.

    >>> Beta.make(2.0, 2.0).mean
    tensor(0.5000)
    """

    parts = ("a − 1", "b − 1")
    axes = (0, 0)

    @classmethod
    def make(cls, a: object, b: object) -> Self:
        """From a and b, one more than the counts of yes and no."""
        first, second = torch.broadcast_tensors(*to_double(a, b))
        return cls((first - 1.0, second - 1.0))

    def _check(self) -> None:
        self._refuse(self.natural[0] > -1, "a must be positive (λ₁ > −1)")
        self._refuse(self.natural[1] > -1, "b must be positive (λ₂ > −1)")

    @property
    def _pair(self) -> Dirichlet:
        return Dirichlet((torch.stack(self.natural, -1),))

    @property
    def mean(self) -> Tensor:
        return self._pair.mean[..., 0]

    @property
    def log_partition(self) -> Tensor:
        return self._pair.log_partition

    @property
    def expectation(self) -> Natural:
        first, second = self._pair.expectation[0].unbind(-1)
        return first, second

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        pair = Dirichlet.from_expectation((torch.stack(expectation, -1),))
        first, second = pair.natural[0].unbind(-1)
        return cls((first, second))

    def statistics(self, x: Tensor) -> Natural:
        return x.log(), torch.log1p(-x)

    def sample(self, num: int, generator: Generator) -> Tensor:
        return self._pair.sample(num, generator)[..., 0]


def rising_root(start: Tensor, f: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """The positive root of f by Newton's method in log x; f returns its value and slope."""
    x = start
    for _ in range(100):
        value, slope = f(x)
        step = (value / (slope * x)).clamp(-1.0, 1.0)
        x = x * torch.exp(-step)
        if (step.abs() <= 1e-14).all():
            break
    return x


def inverse_digamma(y: Tensor) -> Tensor:
    """x with `ψ(x) = y`, by Newton's method from Minka's start (2000, appendix C)."""
    x = torch.where(y > -2.22, y.exp() + 0.5, -1.0 / (y + 0.5772156649015329))
    for _ in range(6):
        x = x - (torch.digamma(x) - y) / torch.polygamma(1, x)
    return x


def gammas(shape: Tensor, num: int, generator: Generator) -> Tensor:
    """Draws of Gamma(shape, 1), (num, *shape)."""
    return torch._standard_gamma(shape.expand(num, *shape.shape).contiguous(), generator=generator)
