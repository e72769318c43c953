"""How class probabilities vary under Gaussian outputs, by draws that are always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_PAIRS = 128
"""Pairs of draws `±z`; these 256 draws give variances and information to a few per cent."""
_REACH, _STEPS = 8.0, 129
"""A single output is integrated over ± _REACH standard deviations in _STEPS steps."""

Weighted = Iterable[tuple[Tensor, Tensor]]
"""Blocks of output draws (draws, n, *) with weights (draws,); all weights add up to 1."""


class Spread(NamedTuple):
    """`E[p]` and `Var[p]` of each class, (..., C), and `H[E p] − E H[p]` in nats, (...)."""

    mean: Tensor
    variance: Tensor
    information: Tensor

    def within(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Variance and information for a predictive whose mean is p instead.

        Their shares of the totals, `p (1 − p)` and the entropy, are no larger than at `self.mean`.
        """
        totals = (p * (1.0 - p), entropy(p)), (self.mean * (1.0 - self.mean), entropy(self.mean))
        parts = zip((self.variance, self.information), *totals, strict=True)
        variance, information = (
            torch.minimum(part, total * (part / drawn_total.clamp_min(1e-30)).clamp_max(1.0))
            for part, total, drawn_total in parts
        )
        return variance, information


def spread(log_probs: Callable[[Tensor], Tensor], centre: Tensor, outputs: Weighted) -> Spread:
    """How p(f) varies over draws of the outputs about their mean `centre`, in one pass."""
    start = log_probs(centre).exp()
    shift = square = torch.zeros_like(start)
    inner = start.new_zeros(start.shape[:-1])
    for f, weight in outputs:
        logs = log_probs(f)
        p = logs.exp()
        # Differences from p(centre) keep small variances from being lost in rounding.
        away = p - start
        shift = shift + torch.tensordot(weight, away, 1)
        square = square + torch.tensordot(weight, away.square(), 1)
        inner = inner - torch.tensordot(weight, (p * logs).sum(-1), 1)
    mean = start + shift
    information = (entropy(mean) - inner).clamp_min(0.0)
    return Spread(mean, (square - shift.square()).clamp_min(0.0), information)


def entropy(p: Tensor) -> Tensor:
    """`−Σ p log p` over the last axis."""
    return torch.special.entr(p.clamp_min(0.0)).sum(-1)


def draws(mean: Tensor, spread: Callable[[Tensor], Tensor]) -> Weighted:
    """Draws of outputs (..., D); `spread` maps white noise (D,) to noise of their covariance."""
    for block in _blocks(_white(mean.shape[-1]).to(mean)):
        noise = torch.stack([spread(white) for white in block])
        weight = mean.new_full((2 * len(block),), 0.5 / _PAIRS)
        yield torch.cat([mean + noise, mean - noise]), weight


def single_outputs(mean: Tensor, variance: Tensor) -> Weighted:
    """Each output on its own, on a grid over its Gaussian."""
    grid = torch.linspace(-_REACH, _REACH, _STEPS, dtype=torch.float64)
    weights = torch.softmax(-0.5 * grid.square(), 0)
    std = variance.sqrt()
    for block, weight in zip(_blocks(grid.to(mean)), _blocks(weights.to(mean)), strict=True):
        yield torch.stack([mean + std * point for point in block]), weight


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Single rows, which take the least memory; all rows at once while a graph is exported."""
    return rows.split(len(rows) if torch.compiler.is_exporting() else 1)


def root(covariance: Tensor) -> Tensor:
    """A Cholesky factor (n, D, D), for singular matrices too."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if not failed.any():
        return factor
    jitter = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky(covariance + jitter[:, None, None] * eye)


@lru_cache(maxsize=64)
def _white(size: int) -> Tensor:
    """Standard normal draws (pairs, size) that fill space evenly and are always the same."""
    # Tensors made in inference mode could not be used outside it.
    with torch.inference_mode(False), torch.no_grad():
        if size > 1000:
            generator = torch.Generator().manual_seed(0)
            return torch.randn(_PAIRS, size, dtype=torch.float64, generator=generator)
        engine = torch.quasirandom.SobolEngine(size, scramble=True, seed=0)
        uniform = engine.draw(_PAIRS, dtype=torch.float64).clamp(1e-6, 1.0 - 1e-6)
        white = torch.special.ndtri(uniform)
        if size > _PAIRS // 4:
            return white / white.square().mean(0).sqrt()
        # Makes their second moments exact, and with them small variances.
        return torch.linalg.solve_triangular(
            torch.linalg.cholesky(white.mT @ white / _PAIRS), white.mT, upper=False
        ).mT.contiguous()
