"""Points and weights for expectations over Gaussian outputs; a wider spread takes more points."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from bayesrule.moments.quadrature import evenly

_REACH, _MOST = 8.0, 641


def grid(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Points t and weights w with `E g(f) ≈ Σ_k w_k g(m + √s t_k)`, at equal distances h.

    A sigmoid has its nearest pole at `iπ / √s` in units of t, so the sums err by
    `exp(−2π² / (h √s))`, or 1e-7 at `h √s = 1.2`. The few points of Gauss-Hermite would miss where
    it is steep. Beyond a standard deviation of 48 the number of points stays at 641.
    """
    std = float(variance.detach().max()) ** 0.5
    num = 41
    while num < _MOST and 2.0 * _REACH / (num - 1) * std >= 1.2:
        num = 2 * num - 1
    return _tensors(num)


@lru_cache
def _tensors(num: int) -> tuple[Tensor, Tensor]:
    points, weights = torch.tensor(evenly(num, _REACH), dtype=torch.float64).T
    return points.contiguous(), weights.contiguous()
