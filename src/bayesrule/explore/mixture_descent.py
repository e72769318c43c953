"""A mixture of Gaussians with full covariances that follows the learning rule on a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.posteriors.mixture import Weighted

Batched = Callable[[Tensor], Tensor]
"""A function from points (n, d) to their values (n,)."""
# The longest move of a mean in a step, in units of the component's spread.
_FARTHEST = 0.5
# The largest change of a log weight in a step.
_CLEAREST = 1.0


def derivatives(function: Batched, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (n,), gradients (n, d) and Hessians (n, d, d) of a batched function at its points."""
    with torch.enable_grad():
        leaf = points.detach().requires_grad_()
        values = function(leaf)
        _check_values(values, points)
        (slope,) = torch.autograd.grad(values.sum(), leaf, create_graph=True)
        rows = [_slope_of(column.sum(), leaf) for column in slope.unbind(1)]
    hessian = torch.stack(rows, dim=1)
    return values.detach(), slope.detach(), 0.5 * (hessian + hessian.mT)


def _slope_of(total: Tensor, leaf: Tensor) -> Tensor:
    """A gradient; zero where the total does not depend on the leaf, as with linear functions."""
    if not total.requires_grad:
        return torch.zeros_like(leaf)
    (slope,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope.detach()


def _check_values(values: object, points: Tensor) -> None:
    shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if shape != (len(points),):
        raise ValueError(
            f"The function takes points (n, {points.shape[1]}) and gives one value for each, (n,): "
            f"of {len(points)} points it gave {shape}. Sum over the last axis only: x.sum(-1)."
        )
    assert isinstance(values, Tensor)
    if not values.requires_grad:
        raise ValueError(
            "The function must be differentiable by torch, and its values do not depend on the "
            "points as torch sees it; for a function without gradients use explore.minimise."
        )
    if not bool(values.isfinite().all()):
        where = points[~values.isfinite()][0].tolist()
        raise ValueError(
            f"The function is not finite at {where}. It must be finite everywhere, and bounded "
            "below, or components run away; replace infinite walls by steep ones."
        )


@dataclass(frozen=True, eq=False)
class FullMixture(Weighted):
    """`q(θ) = Σ_k π_k N(m_k, S_k⁻¹)`: `means` (K, d), `precisions` (K, d, d), `logits` (K,)."""

    means: Tensor
    precisions: Tensor
    logits: Tensor

    @property
    def factors(self) -> Tensor:
        """The Cholesky factors of the precisions, (K, d, d)."""
        return torch.linalg.cholesky(self.precisions)

    def draws(self, num: int, generator: Generator) -> Tensor:
        """`num` draws of each component, in antithetic pairs about its mean, (K, num, d)."""
        size = self.means.shape[1]
        half = torch.randn(
            len(self.means), (num + 1) // 2, size, dtype=self.means.dtype, generator=generator
        )
        noise = torch.cat([half, -half], dim=1)[:, :num]
        away = torch.linalg.solve_triangular(self.factors.mT, noise.mT, upper=True).mT
        return self.means.unsqueeze(1) + away

    def sample(self, num: int, generator: Generator) -> Tensor:
        """Draws of the whole mixture, (num, d)."""
        chosen = torch.multinomial(self.weights, num, replacement=True, generator=generator)
        noise = torch.randn(
            num, self.means.shape[1], 1, dtype=self.means.dtype, generator=generator
        )
        away = torch.linalg.solve_triangular(self.factors.mT[chosen], noise, upper=True)
        return self.means[chosen] + away.squeeze(-1)

    def component_log_probs(self, points: Tensor) -> Tensor:
        """`log N(θ; m_k, S_k⁻¹)` at points (n, d), (n, K)."""
        away = points.unsqueeze(1) - self.means
        white = torch.einsum("nkd,kde->nke", away, self.factors)
        logs = self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        size = points.shape[1]
        return logs - 0.5 * (white.square().sum(2) + size * math.log(2.0 * math.pi))

    def log_prob(self, points: Tensor) -> Tensor:
        """`log q(θ)` at points (n, d), (n,)."""
        return (self.log_weights + self.component_log_probs(points)).logsumexp(1)

    def slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """`∇ log q` (n, d) and `∇² log q` (n, d, d); Khan & Rue (2023), appendix E, eqs 69, 70."""
        part = (self.log_weights + self.component_log_probs(points)).softmax(1)
        pulls = torch.einsum("kde,nke->nkd", self.precisions, points.unsqueeze(1) - self.means)
        first = -torch.einsum("nk,nkd->nd", part, pulls)
        outer = torch.einsum("nk,nkd,nke->nde", part, pulls, pulls)
        second = outer - torch.einsum("nk,kde->nde", part, self.precisions)
        return first, second - first.unsqueeze(2) * first.unsqueeze(1)

    def moved(
        self,
        function: Batched,
        *,
        rate: float,
        draws: int,
        temperature: float,
        generator: Generator,
    ) -> FullMixture:
        """One step of the learning rule on `f / temperature`; Khan & Rue (2023), eqs 29 and 30.

        Expectations are means over draws of each component. The precision moves by `retracted`,
        and the log weights follow `E_{q_k}[f/T + log q]`.
        """
        points = self.draws(draws, generator)
        flat = points.flatten(0, 1)
        value, slope, bend = derivatives(function, flat)
        entropy_slope, entropy_bend = self.slopes(flat)
        shape = (len(self.means), draws)

        def expected(loss: Tensor, log_q: Tensor) -> Tensor:
            total = loss / temperature + log_q
            return total.unflatten(0, shape).mean(1)

        precisions = retracted(self.precisions, expected(bend, entropy_bend), rate)
        direction = _direction(precisions, expected(slope, entropy_slope), _FARTHEST / rate)
        behind = expected(value, self.log_prob(flat))
        behind = (behind - self.weights @ behind).clamp(-_CLEAREST / rate, _CLEAREST / rate)
        logits = self.log_weights - rate * behind
        return replace(
            self, means=self.means - rate * direction, precisions=precisions, logits=logits
        )


def retracted(precisions: Tensor, bends: Tensor, rate: float) -> Tensor:
    """`S + ρG + ½ρ² G S⁻¹ G`, (K, d, d): positive definite for any symmetric G and any ρ.

    It is `½ (S + UᵀU)` with `U = Lᵀ + ρ L⁻¹ G` and `S = LLᵀ`, which stays positive under rounding.
    Lin, Schmidt & Khan (2020), eq. 17.
    """
    factors = torch.linalg.cholesky(precisions)
    root = factors.mT + rate * torch.linalg.solve_triangular(factors, bends, upper=False)
    return 0.5 * (precisions + root.mT @ root)


def _direction(precisions: Tensor, slopes: Tensor, longest: float) -> Tensor:
    """`S⁻¹ g` of each component, no longer than `longest` in units of the component's spread."""
    direction = torch.linalg.solve(precisions, slopes)
    length = (direction * slopes).sum(1, keepdim=True).clamp_min(0.0).sqrt()
    return direction * (longest / length.clamp_min(longest))
