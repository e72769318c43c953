"""The conjugate prior of a Gaussian's mean and precision: normal-Wishart."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Generator, Tensor

from bayesrule.families._base import ExponentialFamily, ImproperError, Natural, to_double
from bayesrule.families.positive import gammas, rising_root

_LOG_2PI = math.log(2.0 * math.pi)


class NormalWishart(ExponentialFamily):
    """`Λ ~ Wishart(W, ν)`, `m | Λ ~ N(m₀, (κ Λ)⁻¹)`; Λ⁻¹ is then inverse Wishart with scale W⁻¹.

    `T(m, Λ) = (Λ m, mᵀ Λ m, Λ, log |Λ|)` and
    `λ = (κ m₀, −κ/2, −(W⁻¹ + κ m₀ m₀ᵀ)/2, (ν − d)/2)`, so that one observation x adds
    `(x, −1/2, −x xᵀ/2, 1/2)`. A point is (*, d, d + 1): Λ beside the column m.

    >>> q = NormalWishart.make(mean=[0.0, 0.0], count=1.0, scatter=torch.eye(2), degrees=2.0)
    >>> q.natural[3]
    tensor(0.)
    """

    parts = ("κ m₀", "−κ/2", "−(W⁻¹ + κ m₀ m₀ᵀ)/2", "(ν − d)/2")
    axes = (1, 0, 2, 0)

    @classmethod
    def make(cls, mean: object, count: object, scatter: object, degrees: object) -> Self:
        """From m₀, κ, W⁻¹ (the scale of the inverse Wishart) and ν > d − 1."""
        m, k, inverse, nu = to_double(mean, count, scatter, degrees)
        outer = m.unsqueeze(-1) * m.unsqueeze(-2)
        second = -0.5 * (inverse + k[..., None, None] * outer)
        return cls((k.unsqueeze(-1) * m, -0.5 * k, second, 0.5 * (nu - m.shape[-1])))

    def _check(self) -> None:
        self._refuse(self.natural[1] < 0, "the count κ must be positive (λ₂ < 0)")
        self._refuse(self.natural[3] > -0.5, "the degrees ν must exceed d − 1 (λ₄ > −1/2)")
        _, info = torch.linalg.cholesky_ex(self.scatter)
        self._refuse(info == 0, "the scatter W⁻¹ must be positive definite")

    @property
    def dim(self) -> int:
        return self.natural[0].shape[-1]

    @property
    def count(self) -> Tensor:
        return -2.0 * self.natural[1]

    @property
    def mean(self) -> Tensor:
        return self.natural[0] / self.count.unsqueeze(-1)

    @property
    def degrees(self) -> Tensor:
        return 2.0 * self.natural[3] + self.dim

    @property
    def scatter(self) -> Tensor:
        """`W⁻¹`."""
        outer = self.mean.unsqueeze(-1) * self.natural[0].unsqueeze(-2)
        scatter = -2.0 * self.natural[2] - outer
        return 0.5 * (scatter + scatter.mT)

    @property
    def expected_precision(self) -> Tensor:
        """`E[Λ] = ν W`."""
        w = torch.cholesky_inverse(torch.linalg.cholesky(self.scatter))
        return self.degrees[..., None, None] * w

    @property
    def log_partition(self) -> Tensor:
        d, nu = self.dim, self.degrees
        gamma = torch.special.multigammaln(0.5 * nu, d)
        normal = 0.5 * d * (_LOG_2PI - self.count.log())
        return normal + 0.5 * nu * (d * math.log(2.0) - _log_det(self.scatter)) + gamma

    @property
    def expected_log_det(self) -> Tensor:
        """`E[log |Λ|]`."""
        d = self.dim
        return _psi(self.degrees, d) + d * math.log(2.0) - _log_det(self.scatter)

    @property
    def expectation(self) -> Natural:
        precision = self.expected_precision
        first = (precision @ self.mean.unsqueeze(-1)).squeeze(-1)
        square = self.dim / self.count + (self.mean * first).sum(-1)
        return first, square, precision, self.expected_log_det

    @classmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        first, square, precision, log_det = expectation
        d = first.shape[-1]
        m = torch.linalg.solve(precision, first.unsqueeze(-1)).squeeze(-1)
        k = d / (square - (m * first).sum(-1))
        gap = torch.logdet(precision) - log_det  # = d log(ν/2) − ψ_d(ν), positive by Jensen
        if not ((gap > 0) & (k > 0)).all():
            raise ImproperError("NormalWishart: no distribution has these expectations.")
        above = rising_root(
            d / gap,
            lambda x: (
                gap - d * ((x + d - 1) / 2).log() + _psi(x + d - 1, d),
                0.5 * _psi(x + d - 1, d, 1) - d / (x + d - 1),
            ),
        )
        nu = above + (d - 1)
        return cls.make(m, k, nu[..., None, None] * torch.linalg.inv(precision), nu)

    def statistics(self, x: Tensor) -> Natural:
        precision, m = x[..., :-1], x[..., -1]
        first = (precision @ m.unsqueeze(-1)).squeeze(-1)
        return first, (first * m).sum(-1), precision, torch.logdet(precision)

    def sample(self, num: int, generator: Generator) -> Tensor:
        """By Bartlett's decomposition, (num, *batch, d, d + 1)."""
        d, nu = self.dim, self.degrees
        noise = nu.new_empty(num, *nu.shape, d, d + 1).normal_(generator=generator)
        squares = gammas(_halves(nu, d), num, generator)
        root = noise[..., :d].tril(-1) + torch.diag_embed((2.0 * squares).sqrt())
        scale = torch.linalg.cholesky(torch.linalg.inv(self.scatter))
        factor = scale @ root
        step = torch.linalg.solve_triangular(factor.mT, noise[..., d:], upper=True)
        m = self.mean.unsqueeze(-1) + step / self.count.sqrt()[..., None, None]
        return torch.cat([factor @ factor.mT, m.expand_as(step)], -1)


def _log_det(matrix: Tensor) -> Tensor:
    return 2.0 * torch.linalg.cholesky(matrix).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _psi(nu: Tensor, d: int, order: int = 0) -> Tensor:
    """`Σ_i ψ((ν − i)/2)` over i < d, with ψ the digamma function or a derivative of it."""
    return torch.polygamma(order, _halves(nu, d)).sum(-1)


def _halves(nu: Tensor, d: int) -> Tensor:
    """`(ν − i)/2` for i < d, (*, d)."""
    return 0.5 * (nu.unsqueeze(-1) - torch.arange(d, dtype=nu.dtype, device=nu.device))
