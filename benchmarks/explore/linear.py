"""Exact Bayesian linear regression of the reward, one for each action, with unknown noise."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


class LinearHeads:
    """For each of A actions `r = βᵀx + e`, with `β ~ N(0, σ²/λ I)` and `σ² ~ InvGamma(a, b)`.

    The posterior is exact after every reward: precision `P = λI + Σ x xᵀ`, mean `P⁻¹ Σ x r`, and
    σ² ~ InvGamma(a + n/2, b + ½ (Σ r² − mᵀ P m)). Riquelme et al. (2018), sec. 3.
    """

    def __init__(
        self, actions: int, size: int, *, precision: float, shape: float, rate: float
    ) -> None:
        eye = torch.eye(size, dtype=torch.float64)
        self._precision = (precision * eye).repeat(actions, 1, 1)
        self._factor = (precision**0.5 * eye).repeat(actions, 1, 1)
        self._sums = torch.zeros(actions, size, dtype=torch.float64)
        self._squares = torch.zeros(actions, dtype=torch.float64)
        self._count = torch.zeros(actions, dtype=torch.float64)
        self.means = torch.zeros_like(self._sums)
        self._prior = shape, rate

    def observe(self, action: int, x: Tensor, rewards: Tensor) -> None:
        """Learns from inputs x (n, d) of one action and rewards (n,)."""
        x, rewards = x.double(), rewards.double()
        self._precision[action] += x.mT @ x
        self._sums[action] += rewards @ x
        self._squares[action] += rewards.square().sum()
        self._count[action] += len(rewards)
        self._factor[action] = torch.linalg.cholesky(self._precision[action])
        solved = torch.cholesky_solve(self._sums[action][:, None], self._factor[action])
        self.means[action] = solved[:, 0]

    def noise(self) -> tuple[Tensor, Tensor]:
        """Shape and rate of the belief over each action's noise variance, (A,)."""
        shape, rate = self._prior
        explained = (self.means * self._sums).sum(1)
        left = (self._squares - explained).clamp_min(0.0)  # Rounding may take it below zero.
        return shape + 0.5 * self._count, rate + 0.5 * left

    def draw(self, generator: Generator) -> Tensor:
        """One draw of the weights of all actions, (A, d)."""
        shape, rate = self.noise()
        gamma = torch._standard_gamma(shape, generator=generator)
        normal = torch.randn(self.means.shape, generator=generator, dtype=torch.float64)
        away = torch.linalg.solve_triangular(self._factor.mT, normal[..., None], upper=True)
        return self.means + (rate / gamma).sqrt()[:, None] * away[..., 0]
