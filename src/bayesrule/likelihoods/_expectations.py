"""Expectations over Gaussian outputs that have no closed form, by quadrature.

Gradients are by quadrature too, `∂/∂m E g = E g'` and `∂/∂s E g = ½ E g''` (Bonnet, Price):
autograd would differentiate through √s, which leaves only rounding errors at small variances.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.quadrature import nodes, with_slopes

_STEPS = 40
_FAR = 200.0
"""The x beyond which `e^−x` counts as zero."""
_WIDE = 18.0
"""Standard deviations above this do not widen the grid further; e^(4 · 18) is still finite."""


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """`E log(1 + e^f)`, f ~ N(mean, variance), elementwise, by 32 nodes.

    The error is 1e-9 at a variance of 1, 1e-5 at 4 and 1e-2 at 25, where the value is about 2.

    >>> expected_softplus(torch.zeros(2), torch.tensor([0.0, 1.0]))
    tensor([0.6931, 0.8061])
    """
    with torch.no_grad():
        std = variance.sqrt()
        value = first = second = torch.zeros_like(mean)
        for point, weight in nodes(32):
            f = torch.add(mean, std, alpha=point)
            p = f.sigmoid()
            value = torch.add(value, F.logsigmoid(-f), alpha=-weight)
            first = torch.add(first, p, alpha=weight)
            second = torch.add(second, p * (1.0 - p), alpha=0.5 * weight)
    return with_slopes(value, (mean, first), (variance, second))


def expected_logsumexp(mean: Tensor, variance: Tensor) -> Tensor:
    """`E log Σ_c e^{f_c}` over the last axis, (..., C) to (...), f ~ N(mean, variance) independent.

    `log S = ∫ [exp(−e^u) − exp(−e^u S)] du` over all real u. The expectation of the last term is a
    product over the classes, `Π_c E exp(−e^{u + f_c})`. So this is one integral of one-dimensional
    expectations, however many classes there are, and exact except for the quadrature: 40 steps in u
    times 16 nodes in f. The error is 1e-6 for variances up to 1, 1e-4 up to 4 and 1e-2 up to 16.
    The second-order expansion about the mean is off by 0.02 to 0.04 at 1 and by 0.3 at 4; bounds
    (Jensen's, or the tilted one of Knowles & Minka, 2011) by more.

    >>> expected_logsumexp(torch.zeros(1, 3), torch.ones(1, 3))
    tensor([1.3900])
    """
    with torch.no_grad():
        value, first, second = _integrals(mean, variance)
    zero = torch.zeros_like(mean)
    return value + with_slopes(zero, (mean, first), (variance, second)).sum(-1)


def _integrals(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`E log S` and its derivatives in each mean and variance; u is measured from `−log S(m)`."""
    start = mean.logsumexp(-1, keepdim=True)
    reach = 4.0 * variance.amax(-1, keepdim=True).sqrt().clamp_max(_WIDE)
    # e^−12 of the mass lies left of the grid, exp(−e³) of it right.
    step = (2.0 * reach + 15.0) / (_STEPS - 1)
    count = torch.arange(_STEPS, dtype=mean.dtype, device=mean.device)
    grid = torch.exp(step * count - reach - 12.0).unsqueeze(-2)
    survival, first, second = _survival(mean - start, variance, grid)
    logs = survival.clamp_min_(torch.finfo(mean.dtype).tiny).log_()
    total = logs.sum(-2, keepdim=True)
    others = torch.exp(total - logs)
    value = (torch.exp(-grid) - torch.exp(total)).sum((-2, -1), keepdim=True).squeeze(-1)
    in_mean, in_variance = (others * first).sum(-1), (others * second).sum(-1)
    return (start + step * value).squeeze(-1), step * in_mean, 0.5 * step * in_variance


def _survival(mean: Tensor, variance: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`E e^−x`, `E x e^−x` and `E (x − x²) e^−x` with `x = grid · e^f`, (..., C, grid).

    The last two are minus the first and the second derivative of `E e^−x` in u = log grid.
    """
    std = variance.sqrt()
    shape = torch.broadcast_shapes((*mean.shape, 1), grid.shape)
    survival, first, second = (mean.new_zeros(shape) for _ in range(3))
    for point, weight in nodes(16):
        x = torch.exp((mean + std * point).clamp_max(80.0)).unsqueeze(-1).mul(grid).clamp_max_(_FAR)
        decay = torch.exp(-x).mul_(weight)
        survival += decay
        first += decay.mul_(x)
        second += decay.sub_(x.mul_(decay))
    return survival, first, second
