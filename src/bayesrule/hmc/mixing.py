"""Whether chains have mixed: rank-normalised split R-hat and bulk effective sample size.

Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat". Draws are (chains, draws, *), results (*).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rhat(draws: Tensor) -> Tensor:
    """How much wider all chains together are than each alone, (*): 1 is ideal, 1.01 is good.

    `√((B/W + n − 1) / n)` of rank-normalised half chains, with the variances B between and W within
    them; or the same of their distances from the median, if that is larger. NaN if all draws are
    equal.

    >>> still = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> round(float(rhat(still)), 2), bool(rhat(still + torch.arange(4.0)[:, None]) > 1.3)
    (1.0, True)
    """
    halves = _halves(draws)
    # torch's own median is the lower of the two middle values, and quantile refuses large tensors.
    ordered = halves.flatten(0, 1).sort(0).values
    num = len(ordered)
    folded = (halves - 0.5 * (ordered[(num - 1) // 2] + ordered[num // 2])).abs()
    return torch.maximum(_plain_rhat(_normal_scores(halves)), _plain_rhat(_normal_scores(folded)))


def ess(draws: Tensor) -> Tensor:
    """How many independent draws would estimate the posterior's centre equally well, (*).

    `S / τ` with `τ = −1 + 2 Σ_k P_k` of rank-normalised half chains. `P_k = ρ_2k + ρ_2k+1` are sums
    of autocorrelations over all chains, cut at the first negative one and made decreasing.

    >>> white = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> bool(ess(white) > 1500), bool(ess(white.cumsum(1)) < 20)
    (True, True)
    """
    scores = _normal_scores(_halves(draws))
    chains, num = scores.shape[:2]
    rho = _autocorrelations(scores)
    # The last lag is a single product, which is mostly noise.
    pairs = rho[: 2 * max(1, (num - 1) // 2)].unflatten(0, (-1, 2)).sum(1)
    last = torch.full_like(pairs[:1], -1.0)
    cut = torch.cat([pairs[:-1], last]).lt(0).to(torch.uint8).argmax(0)
    index = torch.arange(len(pairs)).reshape(-1, *[1] * cut.ndim)
    total = torch.where(index < cut, pairs.cummin(0).values, 0.0).sum(0)
    # The first even lag after the cut corrects the estimate for antithetic chains.
    edge = rho.gather(0, 2 * cut.unsqueeze(0)).squeeze(0).clamp_min(0.0)
    tau = (2.0 * total + edge - 1.0).clamp_min(1.0 / math.log10(chains * num))
    return chains * num / tau


def _halves(draws: Tensor) -> Tensor:
    """Each chain as two, (2 chains, draws // 2, *)."""
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise ValueError(
            f"Draws have the shape (chains, draws, ...) with 4 draws of each chain or more, got "
            f"{tuple(draws.shape)}."
        )
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]]).double()


def _normal_scores(draws: Tensor) -> Tensor:
    """`Φ⁻¹((r − 3/8) / (S + 1/4))` of the ranks r among all S draws; equal draws share a rank."""
    flat = draws.flatten(0, 1).movedim(0, -1).contiguous()
    ordered = flat.sort(-1).values
    below = torch.searchsorted(ordered, flat)
    up_to = torch.searchsorted(ordered, flat, right=True)
    rank = 0.5 * (below + up_to + 1).to(flat.dtype)
    scores = torch.special.ndtri((rank - 0.375) / (flat.shape[-1] + 0.25))
    return scores.movedim(-1, 0).reshape(draws.shape)


def _plain_rhat(chains: Tensor) -> Tensor:
    num = chains.shape[1]
    between = num * chains.mean(1).var(0)
    within = chains.var(1).mean(0)
    return ((between / within + num - 1.0) / num).sqrt()


def _autocorrelations(chains: Tensor) -> Tensor:
    """`ρ_t = 1 − (W − mean autocovariance at lag t) / var⁺`, (n, *)."""
    num = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * num, dim=1).abs().square()
    covariance = torch.fft.irfft(spectrum, n=2 * num, dim=1)[:, :num].mean(0) / num
    within = covariance[0] * num / (num - 1.0)
    total = covariance[0] + chains.mean(1).var(0)
    rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    return rho
