"""Probabilities of Gaussian scores: softmax and Remax.

Both are ratios `A_i = M_i / T`, `T = Σ M_j`, of positive quantities (`M = e^z` or `max(z, 0)`), and
M and T are taken as jointly log-normal. With `r = E M / E T`, `a = Var M / (E M)²` and
`b = Var T / (E T)²`, so that `s_lnM = ln(1 + a)`, `s_lnT = ln(1 + b)` and `c = ln(1 + r a)`,

    E A ∝ r (1 + b) / (1 + r a),
    Var A = (E A)² (e^{s_A} − 1),
    e^{s_A} − 1 = [a_i (1 − r_i)² + (1 + a_i) Σ_{j≠i} r_j² a_j] / (1 + r_i a_i)²,

which is what `s_A = s_lnM + s_lnT − 2c` gives, without its cancellation: no term is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.arithmetic import neg
from bayesrule.moments.choices import LocallyLinear
from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.quadrature import Triple, positive
from bayesrule.moments.shape import movedim
from bayesrule.moments.tensor import GaussianTensor, mapped, rule


def _others(x: Tensor) -> Tensor:
    """For each element the sum of all others along the last axis, of numbers that are not negative.

    Added up from both sides: a total less an element that dominates it would be rounding errors.
    """
    zero = torch.zeros_like(x[..., :1])
    left = torch.cat([zero, x[..., :-1]], -1).cumsum(-1)
    right = torch.cat([x[..., 1:], zero], -1).flip(-1).cumsum(-1).flip(-1)
    return left + right


def remax_moments(m: Tensor, s: Tensor) -> Triple:
    """Mean, variance and slope of `max(z_i, 0) / Σ max(z_j, 0)` over the last axis, z ~ N(m, s).

    The slope is `cov(A_i, z_i) / s_i`. Means add up to one.
    """
    top, spread, cdf = matched_relu(m, s)
    total = top.sum(-1, keepdim=True)
    r, q = top / total, _others(top) / total
    a = spread / top.square()
    rest = _others(spread) / total.square()
    b = (spread / total.square()).sum(-1, keepdim=True)
    mean = (r * (1.0 + b) / (1.0 + r * a)).clamp_min(1e-6)
    mean = mean / mean.sum(-1, keepdim=True)
    ratio = (a * q.square() + (1.0 + a) * rest) / (1.0 + r * a).square()
    variance = positive(ratio * mean.square())
    # cov(A, M) / Φ, but at most the largest covariance that these two variances allow.
    covariance = a * q / (1.0 + r * a) * mean * top / positive(cdf)
    return mean, variance, torch.minimum((variance * s).sqrt(), covariance) / positive(s)


def softmax_moments(m: Tensor, s: Tensor) -> Triple:
    """Mean, variance and slope of `e^{z_i} / Σ e^{z_j}` over the last axis, z ~ N(m, s).

    The slope is `cov(A_i, z_i) / s_i = μ_i (1 − c_i / s_i)`. Means add up to one. A variance that
    overflows is infinite.
    """
    log_mean, log_ratio, share = _log_normal(m, s)
    mean = log_mean.exp()
    return mean, positive((2.0 * log_mean + log_ratio).exp()), mean * (1.0 - share)


def _log_normal(m: Tensor, s: Tensor) -> Triple:
    """`ln E A`, `ln(e^{s_A} − 1)` and the share `c / s` of each score in the logarithm of the sum.

    All in logarithms, since `a = e^s − 1` alone overflows at s = 88 (float32).
    """
    log_r = torch.log_softmax(m + 0.5 * s, -1)
    q = _others(log_r.exp())
    w = -torch.expm1(-s)
    # s − c, where c = ln(1 + r (e^s − 1)) = ln(q + r e^s) = s + ln(1 − q w)
    small = -torch.log1p(-q * w)
    gap = torch.where(s < 1.0, small, s - torch.logaddexp(q.log(), log_r + s))
    rest = _others((2.0 * log_r + s).exp() * w)
    log_ratio = 2.0 * gap - s + (w * q.square() + rest).log()
    log_mean = torch.log_softmax(log_r + gap - s, -1)
    return log_mean, log_ratio, 1.0 - gap / positive(s)


def _coupled(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, share: Tensor, scale: Tensor
) -> GaussianTensor:
    """A function of scores with the slopes `J_ij = scale_i (1[i = j] − share_j)`, last axis."""

    def back(delta: Tensor) -> Tensor:
        delta = scale * delta
        return delta - share * delta.sum(-1, keepdim=True)

    def back_squares(eta: Tensor) -> Tensor:
        eta, squares = scale.square() * eta, share.square()
        diagonal = (1.0 - share).square() - squares
        return diagonal * eta + squares * eta.sum(-1, keepdim=True)

    return mapped(name, x, mean, variance, back, back_squares)


def _bounded(mean: Tensor, variance: Tensor) -> Tensor:
    """A quantity in [0, 1] has at most the variance `μ (1 − μ)`; what overflowed stays infinite."""
    bound = positive(mean * (1.0 - mean))
    return torch.where(variance.isinf(), variance, torch.minimum(variance, bound))


def _softmax(x: GaussianTensor) -> GaussianTensor:
    """Over the last axis.

    Locally linear by the whole Jacobian `J_ij = p_i (1[i = j] − p_j)`: its diagonal `p (1 − p)`
    alone, which TAGI takes, misses a third of the variance and all innovations of other scores.
    Moment-matched in closed form, with `J_ij = μ_i (1[i = j] − c_j / s_j)`.
    """
    m, s = x.centre, x.variance
    if isinstance(x.tape.activations, LocallyLinear):
        p = torch.softmax(m, -1)
        return _coupled("softmax", x, p, p.square() * _linear_variance(p, s), p, p)
    log_mean, log_ratio, share = _log_normal(m, s)
    mean = log_mean.exp()
    variance = _bounded(mean, positive((2.0 * log_mean + log_ratio).exp()))
    return _coupled("softmax", x, mean, variance, share, mean)


def _log_softmax(x: GaussianTensor) -> GaussianTensor:
    """Over the last axis, `z − ln Σ e^z`: the Gaussian whose exponential softmax is taken to be."""
    m, s = x.centre, x.variance
    if isinstance(x.tape.activations, LocallyLinear):
        p, mean = torch.softmax(m, -1), torch.log_softmax(m, -1)
        return _coupled("log_softmax", x, mean, _linear_variance(p, s), p, torch.ones_like(p))
    log_mean, log_ratio, share = _log_normal(m, s)
    variance = positive(torch.logaddexp(torch.zeros_like(log_ratio), log_ratio))
    mean = log_mean - 0.5 * variance
    return _coupled("log_softmax", x, mean, variance, share, torch.ones_like(share))


def _linear_variance(p: Tensor, s: Tensor) -> Tensor:
    """`Σ_j (1[i = j] − p_j)² s_j`."""
    return (1.0 - p).square() * s + _others(p.square() * s)


def _along(name: str, function: Callable[[GaussianTensor], GaussianTensor]) -> Callable[..., Any]:
    """The rule of a function of the last axis for any axis."""

    def apply(
        input: GaussianTensor,
        dim: int | None = None,
        dtype: torch.dtype | None = None,
        _stacklevel: int = 3,
    ) -> GaussianTensor:
        if dim is None:
            raise TypeError(f"{name} of a Gaussian tensor needs the axis, as in {name}(x, dim=-1).")
        if dtype not in (None, input.dtype):
            raise TypeError(
                f"{name} of a {input.dtype} Gaussian tensor cannot turn it into {dtype}; leave "
                "dtype out, or run the network in that type."
            )
        if dim in (-1, input.ndim - 1):
            return function(input)
        return movedim(function(movedim(input, dim, -1)), -1, dim)

    return rule(*(getattr(home, name) for home in (F, torch, Tensor, torch.special)))(apply)


softmax = _along("softmax", _softmax)
log_softmax = _along("log_softmax", _log_softmax)


@rule(F.softmin)
def softmin(input: GaussianTensor, **options: Any) -> GaussianTensor:
    """`softmax(−z)`."""
    return softmax(neg(input), **options)
