"""Gaussians with unknown means and precisions: the messages of rows to normal-Wishart nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.families import Natural, NormalWishart

_LOG_2PI = math.log(2.0 * math.pi)
# The most numbers in a chunk of rows for all components, which then fit a cache.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Gaussians:
    """The expected log densities of K Gaussians under normal-Wishart beliefs q(m, Λ).

    `E_q[log N(x | m, Λ⁻¹)] = c − ½ |Rᵀ(x − m̄)|²` with `Λ̄ = R Rᵀ = E[Λ]`, or the same at the mode
    of q, which is EM's: `Λ = N (Σ (x − m̄)(x − m̄)ᵀ)⁻¹`. (K, d), (K, d, d) and (K,).
    """

    mean: Tensor
    root: Tensor
    constant: Tensor

    @classmethod
    def of(cls, natural: Natural, at_mode: bool) -> Gaussians:
        """The Gaussians of a belief, in expectation or at its mode."""
        q = NormalWishart(natural)
        counts = 2.0 * natural[3] if at_mode else q.degrees
        scatter = torch.linalg.cholesky(q.scatter / counts[:, None, None])
        eye = torch.eye(q.dim, dtype=scatter.dtype, device=scatter.device)
        root = torch.linalg.solve_triangular(scatter, eye, upper=False).mT
        if at_mode:
            log_det = -2.0 * scatter.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            return cls(q.mean, root, 0.5 * (log_det - q.dim * _LOG_2PI))
        spread = q.dim / q.count
        return cls(q.mean, root, 0.5 * (q.expected_log_det - q.dim * _LOG_2PI - spread))

    def cpu(self) -> Gaussians:
        """A copy on the CPU, where the generators are."""
        return Gaussians(self.mean.cpu(), self.root.cpu(), self.constant.cpu())

    @property
    def normalised(self) -> Gaussians:
        """The same Gaussians as densities that integrate to 1."""
        log_det = self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return replace(self, constant=log_det - 0.5 * self.mean.shape[1] * _LOG_2PI)

    @property
    def covariance(self) -> Tensor:
        """`Λ̄⁻¹`, (K, d, d)."""
        return torch.cholesky_inverse(torch.linalg.cholesky(self.root @ self.root.mT))

    def log_prob(self, x: Tensor) -> Tensor:
        """`E_q[log N(x | m_k, Λ_k⁻¹)]`, (n, K)."""
        k, d = self.mean.shape
        # Rows are the last axis, so that sums over d run along whole vectors.
        offset = -(self.mean.unsqueeze(1) @ self.root).reshape(k * d, 1)
        white = torch.addmm(offset, self.root.mT.reshape(k * d, d), x.T).square_()
        return torch.sub(self.constant.unsqueeze(1), white.view(k, d, -1).sum(1), alpha=0.5).T

    def sample(self, which: Tensor, generator: Generator) -> Tensor:
        """One draw from the component of each row, (n, d)."""
        noise = torch.empty(len(which), self.mean.shape[1], dtype=self.mean.dtype)
        noise.normal_(generator=generator)
        factor = torch.linalg.cholesky(self.covariance)
        return self.mean[which] + (factor[which] @ noise.unsqueeze(-1)).squeeze(-1)


def chunk(components: int, columns: int) -> int:
    """How many rows to take at once, so that all intermediate results fit a cache."""
    return max(_CHUNK // (components * columns), 64)


def collapsed(natural: Natural, seen: Gaussians, floor: float, what: str) -> Iterator[str]:
    """Warnings about nodes of EM that have too few rows for a covariance."""
    counts, least = 2.0 * natural[3], torch.linalg.eigvalsh(seen.covariance)[:, 0]
    for k, (count, variance) in enumerate(zip(counts.tolist(), least.tolist(), strict=True)):
        if count < 1.0 or variance < 2.0 * floor:
            yield (
                f"{what} {k} has collapsed: it holds {count:.3g} rows, and its least variance is "
                f"{variance:.3g}. Take fewer, a larger reg_covar, or inference=VB(), whose prior "
                "keeps covariances."
            )


def said(x: Tensor, shares: Tensor, floor: float = 0.0) -> Natural:
    """The messages `Σ_i r_ik (x_i, −½, −½(x_i x_iᵀ + floor I), ½)` to K nodes.

    `floor` is the variance of an error in each row; it keeps covariances from collapsing.
    """
    counts = shares.sum(0)
    second = _squares(x.T.contiguous(), shares)
    second = second + floor * torch.diag_embed(counts.unsqueeze(1).expand(-1, x.shape[1]))
    return shares.T @ x, -0.5 * counts, -0.5 * second, 0.5 * counts


def _squares(columns: Tensor, shares: Tensor) -> Tensor:
    """`Σ_i r_ik x_i x_iᵀ`, (K, d, d), from columns (d, n); by the upper triangle if d is small."""
    d, k = len(columns), shares.shape[1]
    if d > 4 * k:
        return torch.stack([(columns * share) @ columns.T for share in shares.T])
    rows, cols = torch.triu_indices(d, d, device=columns.device)
    sums = (columns[rows] * columns[cols]) @ shares
    squares = sums.new_empty(k, d, d)
    squares[:, rows, cols] = sums.T
    squares[:, cols, rows] = sums.T
    return squares


def flat(spread: Tensor, components: int) -> Natural:
    """A prior of almost no weight; a component without rows gets the covariance of all rows."""
    tiny = 10.0 * torch.finfo(spread.dtype).eps
    counts = spread.new_full((components,), tiny)
    mean = spread.new_zeros(components, len(spread))
    return mean, -0.5 * counts, -0.5 * tiny * spread.expand(components, -1, -1), 0.5 * counts


def vague(
    spread: Tensor, components: int, count: float = 1.0, degrees: float | None = None
) -> Natural:
    """The prior of scikit-learn's BayesianGaussianMixture, for centred rows: `W⁻¹ = spread`."""
    d, each = len(spread), (components,)
    nu = float(d) if degrees is None else degrees
    mean = spread.new_zeros(components, d)
    scatter = spread.expand(components, -1, -1)
    return NormalWishart.make(
        mean, spread.new_full(each, count), scatter, spread.new_full(each, nu)
    ).natural


@dataclass(frozen=True)
class Students:
    """The prediction `∫ N(x | m, Λ⁻¹) q(m, Λ)`: K Student t with ν − d + 1 degrees each."""

    q: NormalWishart

    def cpu(self) -> Students:
        """A copy on the CPU, where the generators are."""
        return Students(NormalWishart(tuple(part.cpu() for part in self.q.natural)))

    @property
    def degrees(self) -> Tensor:
        return self.q.degrees - self.q.dim + 1.0

    @property
    def factor(self) -> Tensor:
        """The Cholesky factor of the scale `W⁻¹ (κ + 1) / (κ (ν − d + 1))`."""
        widening = (self.q.count + 1.0) / (self.q.count * self.degrees)
        return torch.linalg.cholesky(widening[:, None, None] * self.q.scatter)

    def log_prob(self, x: Tensor) -> Tensor:
        """`log p(x | k)`, (n, K)."""
        d, nu, factor = self.q.dim, self.degrees, self.factor
        gap = (x.unsqueeze(0) - self.q.mean.unsqueeze(1)).mT
        white = torch.linalg.solve_triangular(factor, gap, upper=False).square().sum(-2)
        halves = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = torch.lgamma(0.5 * (nu + d)) - torch.lgamma(0.5 * nu)
        constant = constant - 0.5 * d * (nu * math.pi).log() - halves
        return (
            constant.unsqueeze(1) - 0.5 * (nu + d).unsqueeze(1) * (white / nu.unsqueeze(1)).log1p()
        ).T

    def sample(self, which: Tensor, generator: Generator) -> Tensor:
        """One draw from the component of each row, (n, d)."""
        noise = torch.empty(len(which), self.q.dim, dtype=self.degrees.dtype)
        noise.normal_(generator=generator)
        half = 0.5 * self.degrees[which]
        shrink = (torch._standard_gamma(half, generator=generator) / half).rsqrt()
        step = (self.factor[which] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.q.mean[which] + shrink.unsqueeze(1) * step
