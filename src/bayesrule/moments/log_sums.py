"""Logarithms of sums of exponentials of Gaussians, `ln Σ e^{z_j}`, which softmax divides by."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.quadrature import nodes, positive
from bayesrule.moments.tensor import Moments


@lru_cache
def placed(
    pairs: tuple[tuple[float, float], ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Points and weights of quadrature as tensors (num,)."""
    table = torch.tensor(pairs, dtype=dtype, device=device)
    return table[:, 0], table[:, 1]


def averaged(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over the nodes, the last axis."""
    return values @ weights


def added(a: Moments, b: Moments) -> Moments:
    """Mean and variance of `L = ln(e^a + e^b)` for independent Gaussians, by quadrature.

    With `y = b − a`, `L = a + softplus(y)`. Let π be the mean slope of softplus. The remainder
    `r = softplus(y) − π y` is uncorrelated with a and b: `Var L = (1 − π)² s_a + π² s_b + Var r`.
    """
    # Let a be the larger one: then softplus and π vanish where e^b does, however small it is.
    turned = b[0] > a[0]
    (m, s), (low, t) = (
        (torch.where(turned, x[0], y[0]), torch.where(turned, x[1], y[1]))
        for x, y in ((b, a), (a, b))
    )
    points, weights = placed(nodes(7), m.dtype, m.device)
    std = positive(s + t).sqrt().unsqueeze(-1)
    y = torch.addcmul((low - m).unsqueeze(-1), std, points)
    rise, slope = F.softplus(y), averaged(torch.sigmoid(y), weights)
    remainder = rise - slope.unsqueeze(-1) * y
    away = remainder - averaged(remainder, weights).unsqueeze(-1)
    variance = (1.0 - slope).square() * s + slope.square() * t
    return m + averaged(rise, weights), variance + averaged(away.square(), weights)


def log_sums_of_others(m: Tensor, s: Tensor) -> Moments:
    """Mean and variance of `ln Σ_{j≠i} e^{z_j}` for each i of the last axis.

    Every partial sum is taken as log-normal. The elements are added in pairs first; the sum of the
    others is then the sum over all other pairs plus the partner in i's own pair.
    """
    num = m.shape[-1]
    nothing = torch.finfo(m.dtype).min / 8.0  # stands for ln 0 and keeps the arithmetic finite
    m = m.clamp_min(nothing)
    if num == 1:
        return torch.full_like(m, nothing), torch.zeros_like(s)
    if num == 2:
        return m.flip(-1), s.flip(-1)
    m, s = F.pad(m, (0, num % 2), value=nothing), F.pad(s, (0, num % 2))
    m, s = m.unflatten(-1, (-1, 2)), s.unflatten(-1, (-1, 2))
    pairs = log_sums_of_others(*added((m[..., 0], s[..., 0]), (m[..., 1], s[..., 1])))
    others, partner = [t.unsqueeze(-1) for t in pairs], (m.flip(-1), s.flip(-1))
    mean, variance = added((others[0], others[1]), partner)
    return mean.flatten(-2)[..., :num], variance.flatten(-2)[..., :num]
