"""The maximum of several independent Gaussians."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.quadrature import Triple, positive

NOTHING = -1e18
"""The mean of an element that is never the maximum; its square is finite."""


def larger(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Triple:
    """Mean and variance of `max(a, b)`, and the probability π that it is b; Clark (1961).

    `max(a, b) = a + max(y, 0)` with `y = b − a`. The remainder `r = max(y, 0) − π y` is
    uncorrelated with a and b, so the variance is `(1 − π)² s_a + π² s_b + Var r` with
    `Var r = Var max(y, 0) − π² s_y`.
    """
    (m, s), (n, t) = a, b
    wide = s + t
    rise, spread, share = matched_relu(n - m, wide)
    fall = matched_relu(m - n, wide)[0]
    remainder = (spread - share.square() * wide).clamp_min(0.0)
    # Start from the larger mean: the other may be so far away that adding to it loses all digits.
    mean = torch.where(n > m, n + fall, m + rise)
    return mean, (1.0 - share).square() * s + share.square() * t + remainder, share


_EDGES = -4.0, 5.0, 19


def largest(m: Tensor, s: Tensor) -> Triple:
    """Mean and variance of the maximum along the last axis, and its slopes, which add up to one.

    Uses the distribution function `Π Φ((t − m_j) / √s_j)` at points around the pairwise estimate.
    """
    centre, spread, slopes = by_pairs(m, s)
    points = torch.linspace(*_EDGES, dtype=m.dtype, device=m.device)
    step, std = float(points[1] - points[0]), positive(spread).sqrt().unsqueeze(-1)
    places = torch.addcmul(centre.unsqueeze(-1), std, points)
    away = (m.unsqueeze(-2) - places.unsqueeze(-1)) / positive(s).sqrt().unsqueeze(-2)
    below = (0.5 * torch.erfc(away * math.sqrt(0.5))).prod(-1)
    # Each interval's probability is put at its middle, that outside the grid at its ends.
    masses = torch.diff(F.pad(F.pad(below, (1, 0)), (0, 1), value=1.0))
    middles = F.pad(points[:-1] + 0.5 * step, (1, 0), value=_EDGES[0])
    middles = F.pad(middles, (0, 1), value=_EDGES[1])
    first, second = masses @ middles, masses @ middles.square()
    # Sheppard's correction: within an interval values vary by step² / 12.
    variance = (second - first.square() - step**2 / 12.0).clamp_min(0.0) * spread
    return centre + std.squeeze(-1) * first, positive(variance), slopes


def by_pairs(m: Tensor, s: Tensor) -> Triple:
    """Approximates the maximum pair by pair, taking the maximum of each pair as Gaussian."""
    num = m.shape[-1]
    if num == 1:
        return m[..., 0], s[..., 0], torch.ones_like(m)
    m, s = F.pad(m, (0, num % 2), value=NOTHING), F.pad(s, (0, num % 2))
    (a, b), (sa, sb) = (t.unflatten(-1, (-1, 2)).unbind(-1) for t in (m, s))
    *pairs, share = larger((a, sa), (b, sb))
    mean, variance, slopes = by_pairs(*pairs)
    slopes = torch.stack([slopes * (1.0 - share), slopes * share], -1)
    return mean, variance, slopes.flatten(-2)[..., :num]
