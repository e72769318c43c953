"""How class probabilities vary with Gaussian outputs, by draws that are the same at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_PAIRS = 128
"""Draws `±z`; 256 of them find variances and information to a few per cent."""
_REACH, _STEPS = 8.0, 129
"""One output is integrated over so many standard deviations to both sides, in so many steps."""

Weighted = Iterable[tuple[Tensor, Tensor]]
"""Some outputs at a time, (some, n, *), and how much each counts, (some,); together all count 1."""


class Spread(NamedTuple):
    """`E[p]` and `Var[p]` of each class, (..., C), and `H[E p] − E H[p]` in nats, (...)."""

    mean: Tensor
    variance: Tensor
    information: Tensor

    def within(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Variance and information where the mean is said to be p: no larger shares of the whole.

        The whole is `p (1 − p)`, and the entropy.
        """
        wholes = (p * (1.0 - p), entropy(p)), (self.mean * (1.0 - self.mean), entropy(self.mean))
        parts = zip((self.variance, self.information), *wholes, strict=True)
        first, second = (
            torch.minimum(part, said * (part / found.clamp_min(1e-30)).clamp_max(1.0))
            for part, said, found in parts
        )
        return first, second


def spread(log_probs: Callable[[Tensor], Tensor], centre: Tensor, outputs: Weighted) -> Spread:
    """How p(f) varies over some outputs f about their mean `centre`, in one pass over them."""
    start = log_probs(centre).exp()
    shift = square = torch.zeros_like(start)
    inner = start.new_zeros(start.shape[:-1])
    for f, weight in outputs:
        logs = log_probs(f)
        p = logs.exp()
        # Counted from p(centre), so that small variances are not lost in rounding.
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
    """Draws of outputs (..., D): `spread` gives white noise (D,) their covariance."""
    for some in _at_once(_white(mean.shape[-1]).to(mean)):
        steps = torch.stack([spread(white) for white in some])
        yield torch.cat([mean + steps, mean - steps]), mean.new_full((2 * len(some),), 0.5 / _PAIRS)


def single_outputs(mean: Tensor, variance: Tensor) -> Weighted:
    """Each output for itself, on a grid over its Gaussian."""
    grid = torch.linspace(-_REACH, _REACH, _STEPS, dtype=torch.float64)
    weights = torch.softmax(-0.5 * grid.square(), 0)
    std = variance.sqrt()
    for places, weight in zip(_at_once(grid.to(mean)), _at_once(weights.to(mean)), strict=True):
        yield torch.stack([mean + std * at for at in places]), weight


def _at_once(rows: Tensor) -> tuple[Tensor, ...]:
    """One row at a time, which takes the least memory; all where a graph of it is made."""
    return rows.split(len(rows) if torch.compiler.is_exporting() else 1)


def root(covariance: Tensor) -> Tensor:
    """A Cholesky factor (n, D, D), also of matrices that are singular."""
    found, failed = torch.linalg.cholesky_ex(covariance)
    if not failed.any():
        return found
    jitter = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky(covariance + jitter[:, None, None] * eye)


@lru_cache(maxsize=64)
def _white(size: int) -> Tensor:
    """Standard normal draws (pairs, size) that fill the space evenly, always the same ones."""
    # Tensors born in inference mode could not be used outside of it.
    with torch.inference_mode(False), torch.no_grad():
        if size > 1000:
            generator = torch.Generator().manual_seed(0)
            return torch.randn(_PAIRS, size, dtype=torch.float64, generator=generator)
        engine = torch.quasirandom.SobolEngine(size, scramble=True, seed=0)
        uniform = engine.draw(_PAIRS, dtype=torch.float64).clamp(1e-6, 1.0 - 1e-6)
        white = torch.special.ndtri(uniform)
        if size > _PAIRS // 4:
            return white / white.square().mean(0).sqrt()
        # Their second moments are exact, and so are small variances.
        return torch.linalg.solve_triangular(
            torch.linalg.cholesky(white.mT @ white / _PAIRS), white.mT, upper=False
        ).mT.contiguous()
