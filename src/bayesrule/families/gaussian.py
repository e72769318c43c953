"""Gaussians: one number, independent numbers, and vectors with a full covariance."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor

from bayesrule.families._base import ExponentialFamily, Natural, to_double

_LOG_2PI = math.log(2.0 * math.pi)


class Normal(ExponentialFamily):
    """`N(m, 1/s)` of one number: `T(x) = (x, x²)`, `λ = (s m, −s/2)`.

    >>> Normal.make(mean=1.0, variance=4.0).entropy.round(decimals=4)
    tensor(2.1121)
    """

    parts = ("precision·mean", "−precision/2")
    axes: ClassVar[tuple[int, ...]] = (0, 0)

    @classmethod
    def make(cls, mean: object, variance: object) -> Self:
        """From mean and variance."""
        m, v = torch.broadcast_tensors(*to_double(mean, variance))
        return cls((m / v, -0.5 / v))

    def _check(self) -> None:
        self._refuse(self.natural[1] < 0, "the precision must be positive (λ₂ < 0)")

    @property
    def variance(self) -> Tensor:
        return -0.5 / self.natural[1]

    @property
    def mean(self) -> Tensor:
        return self.natural[0] * self.variance

    @property
    def log_partition(self) -> Tensor:
        v = self.variance
        return 0.5 * (self.natural[0].square() * v + v.log() + _LOG_2PI)

    @property
    def expectation(self) -> Natural:
        return self.mean, self.mean.square() + self.variance

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        first, second = expectation
        return cls.make(first, second - first.square())

    def statistics(self, x: Tensor) -> Natural:
        return x, x.square()

    def sample(self, num: int, generator: Generator) -> Tensor:
        m = self.mean
        noise = torch.empty(num, *m.shape, dtype=m.dtype, device=m.device)
        return m + self.variance.sqrt() * noise.normal_(generator=generator)


class DiagonalGaussian(Normal):
    """`N(m, diag(1/s))` of vectors, each number by itself: `λ = (s ∘ m, −s/2)`, (*, d) both.

    >>> DiagonalGaussian.make(mean=[0.0, 0.0], variance=[1.0, 1.0]).log_partition.shape
    torch.Size([])
    """

    axes = (1, 1)

    @property
    def log_partition(self) -> Tensor:
        return super().log_partition.sum(-1)


class Gaussian(ExponentialFamily):
    """`N(m, S⁻¹)` of vectors: `T(x) = (x, x xᵀ)`, `λ = (S m, −S/2)`.

    >>> q = Gaussian.make(mean=[1.0, 0.0], covariance=[[2.0, 0.0], [0.0, 1.0]])
    >>> q.natural[0]
    tensor([0.5000, 0.0000])
    """

    parts = ("precision·mean", "−precision/2")
    axes = (1, 2)

    @classmethod
    def make(cls, mean: object, covariance: object) -> Self:
        """From mean and covariance."""
        m, v = to_double(mean, covariance)
        precision = torch.linalg.inv(v)
        return cls(((precision @ m.unsqueeze(-1)).squeeze(-1), -0.5 * _symmetric(precision)))

    def _check(self) -> None:
        _, info = torch.linalg.cholesky_ex(-_symmetric(self.natural[1]))
        self._refuse(info == 0, "the precision must be positive definite (λ₂ < 0)")

    @property
    def precision(self) -> Tensor:
        return -2.0 * _symmetric(self.natural[1])

    @property
    def covariance(self) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(self.precision))

    @property
    def mean(self) -> Tensor:
        factor = torch.linalg.cholesky(self.precision)
        return torch.cholesky_solve(self.natural[0].unsqueeze(-1), factor).squeeze(-1)

    @property
    def log_partition(self) -> Tensor:
        factor = torch.linalg.cholesky(self.precision)
        white = torch.linalg.solve_triangular(factor, self.natural[0].unsqueeze(-1), upper=False)
        halves = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * (white.square().sum((-2, -1)) + factor.shape[-1] * _LOG_2PI) - halves

    @property
    def expectation(self) -> Natural:
        m = self.mean
        return m, self.covariance + m.unsqueeze(-1) * m.unsqueeze(-2)

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        m, second = expectation
        return cls.make(m, second - m.unsqueeze(-1) * m.unsqueeze(-2))

    def statistics(self, x: Tensor) -> Natural:
        return x, x.unsqueeze(-1) * x.unsqueeze(-2)

    def sample(self, num: int, generator: Generator) -> Tensor:
        factor = torch.linalg.cholesky(self.precision)
        m = self.mean
        noise = torch.empty(num, *m.shape, dtype=m.dtype, device=m.device)
        noise = noise.normal_(generator=generator).unsqueeze(-1)
        return m + torch.linalg.solve_triangular(factor.mT, noise, upper=True).squeeze(-1)


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
