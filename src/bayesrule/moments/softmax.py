"""Class probabilities of Gaussian scores: softmax and Remax.

A softmax probability is a sigmoid of a difference, `A_i = σ(z_i − L_i)` with
`L_i = ln Σ_{j≠i} e^{z_j}` independent of z_i. L is taken as Gaussian (`log_sums.py`), so the
moments are those of a sigmoid. By Stein's lemma the slopes are `J_ii = E[A_i (1 − A_i)]` and
`J_ij = −E[A_i A_j]`. The latter is approximated by `−J_ii E A_j / (1 − E A_i)`, so that rows add up
to zero, as they must.

Remax is the ratio `A_i = M_i / T`, `T = Σ M_j`, of positive quantities `M = max(z, 0)`; M and T are
taken as jointly log-normal. With `r = E M / E T`, `a = Var M / (E M)²` and `b = Var T / (E T)²`, so
that `s_lnM = ln(1 + a)`, `s_lnT = ln(1 + b)` and `c = ln(1 + r a)`,

    E A ∝ r (1 + b) / (1 + r a),
    Var A = (E A)² (e^{s_A} − 1),
    e^{s_A} − 1 = [a_i (1 − r_i)² + (1 + a_i) Σ_{j≠i} r_j² a_j] / (1 + r_i a_i)².

The last line equals `s_A = s_lnM + s_lnT − 2c` without its cancellation: no term is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.log_sums import averaged, log_sums_of_others, placed
from bayesrule.moments.quadrature import (
    Triple,
    at_least_linear,
    evenly,
    in_blocks,
    positive,
    quadrature,
)
from bayesrule.moments.shape import movedim
from bayesrule.moments.tensor import GaussianTensor, mapped, rule


def _others(x: Tensor) -> Tensor:
    """For each element the sum of all others along the last axis, for numbers ≥ 0.

    Sums from both sides: a total minus an element that dominates it would be a rounding error.
    """
    zero = torch.zeros_like(x[..., :1])
    left = torch.cat([zero, x[..., :-1]], -1).cumsum(-1)
    right = torch.cat([x[..., 1:], zero], -1).flip(-1).cumsum(-1).flip(-1)
    return left + right


def remax_moments(m: Tensor, s: Tensor) -> Triple:
    """Mean, variance and slope of `max(z_i, 0) / Σ max(z_j, 0)` over the last axis, z ~ N(m, s).

    The slope is `cov(A_i, z_i) / s_i`. Means add up to one.
    """
    # Ratios need floors: a score that is certainly below zero has moments of zero.
    top, spread, cdf = matched_relu(m, s)
    top, spread = top.clamp_min(1e-6), spread.clamp_min(1e-6)
    total = top.sum(-1, keepdim=True)
    r, q = top / total, _others(top) / total
    a = spread / top.square()
    others = _others(spread) / total.square()
    b = (spread / total.square()).sum(-1, keepdim=True)
    mean = (r * (1.0 + b) / (1.0 + r * a)).clamp_min(1e-6)
    mean = mean / mean.sum(-1, keepdim=True)
    ratio = (a * q.square() + (1.0 + a) * others) / (1.0 + r * a).square()
    variance = positive(ratio * mean.square())
    # cov(A, M) / Φ, but no more than the two variances allow.
    covariance = a * q / (1.0 + r * a) * mean * top / positive(cdf)
    return mean, variance, torch.minimum((variance * s).sqrt(), covariance) / positive(s)


# For a sigmoid of a wide Gaussian, equidistant points are more accurate than Gauss-Hermite nodes.
_EVEN = evenly(21, 5.0)


def _sigmoid(m: Tensor, s: Tensor) -> Triple:
    """Mean, variance (within 1 % at a standard deviation of 7) and slope of `σ(z)`."""
    points, weights = placed(_EVEN, m.dtype, m.device)
    std = positive(s).sqrt().unsqueeze(-1)
    p = torch.sigmoid(torch.addcmul(m.unsqueeze(-1), std, points))
    mean, slope = averaged(p, weights), averaged(p * (1.0 - p), weights)
    variance = averaged((p - mean.unsqueeze(-1)).square(), weights)
    return mean, at_least_linear(variance, slope, s), slope


def softmax_moments(m: Tensor, s: Tensor) -> Triple:
    """Mean, variance and slope of `e^{z_i} / Σ e^{z_j}` over the last axis, z ~ N(m, s).

    The slope is `cov(A_i, z_i) / s_i = E[A_i (1 − A_i)]`. Means add up to one.
    """
    log_sum, spread = log_sums_of_others(m, s)
    mean, variance, slope = in_blocks(_sigmoid, m - log_sum, s + spread, num=3)
    # The variance of a rare class is proportional to its mean, so both are normalised alike.
    total = mean.sum(-1, keepdim=True)
    mean = mean / total
    # A quantity in [0, 1] has at most variance μ (1 − μ).
    bounded = torch.minimum(variance / total, positive(mean * _others(mean)))
    return mean, bounded, slope / total


def log_normal_means(m: Tensor, s: Tensor) -> Tensor:
    """Softmax means with `e^z` and their sum taken as jointly log-normal; used by attention.

    They favour scores of large variance more than the true means do. With the true means, scores
    that are still unknown carry no information, and attention does not begin to learn. Computed in
    logarithms, because `e^s` overflows at s = 88 (float32).
    """
    log_r = torch.log_softmax(m + 0.5 * s, -1)
    q = _others(log_r.exp())
    # s − c, where c = ln(1 + r (e^s − 1)) = ln(q + r e^s)
    small = -torch.log1p(q * torch.expm1(-s))
    gap = torch.where(s < 1.0, small, s - torch.logaddexp(q.log(), log_r + s))
    return torch.softmax(log_r + gap - s, -1)


def tilted_means(m: Tensor, s: Tensor, steps: int = 2) -> Tensor:
    """Softmax means as the fixed point `p = softmax(m + s (½ − p))`, correct to first order in s.

    The fixed point minimises a bound on `E ln Σ e^z`; Knowles & Minka (2011). Steps are damped,
    because plain ones may overshoot.
    """
    p = torch.softmax(m, -1)
    for _ in range(steps):
        target = torch.softmax(m + s * (0.5 - p), -1)
        p = torch.addcdiv(p, target - p, 1.0 + s * p * (1.0 - p))
        p = p / p.sum(-1, keepdim=True)
    return p


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


def _softmax(x: GaussianTensor) -> GaussianTensor:
    """Softmax over the last axis.

    `LocallyLinear` uses the whole Jacobian `J_ij = p_i (1[i = j] − p_j)`: its diagonal `p (1 − p)`
    alone, which TAGI takes, misses a third of the variance and all innovations of other scores.
    """
    m, s = x.centre, x.variance
    if x.tape.activations.by_tangent:
        p = torch.softmax(m, -1)
        return _coupled("softmax", x, p, p.square() * _linear_variance(p, s), p, p)
    mean, variance, slope = softmax_moments(m, s)
    return _coupled("softmax", x, mean, variance, mean, slope / positive(_others(mean)))


def _log_softmax(x: GaussianTensor) -> GaussianTensor:
    """Log-softmax over the last axis, `ln σ(z_i − L_i)`, with the slopes `1[i = j] − E A_j`."""
    m, s = x.centre, x.variance
    if x.tape.activations.by_tangent:
        p, mean = torch.softmax(m, -1), torch.log_softmax(m, -1)
        return _coupled("log_softmax", x, mean, _linear_variance(p, s), p, torch.ones_like(p))
    log_sum, spread = log_sums_of_others(m, s)
    mean, variance, slope = quadrature(F.logsigmoid, m - log_sum, s + spread)
    return _coupled("log_softmax", x, mean, variance, 1.0 - slope, torch.ones_like(mean))


def _linear_variance(p: Tensor, s: Tensor) -> Tensor:
    """`Σ_j (1[i = j] − p_j)² s_j`."""
    return (1.0 - p).square() * s + _others(p.square() * s)


def _along(
    name: str,
    function: Callable[[GaussianTensor], GaussianTensor],
    input: GaussianTensor,
    dim: int | None = None,
    dtype: torch.dtype | None = None,
    _stacklevel: int = 3,
) -> GaussianTensor:
    """Applies a function of the last axis along axis `dim`."""
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


for _name, _function in (("softmax", _softmax), ("log_softmax", _log_softmax)):
    _homes = (F, torch, Tensor, torch.special)
    rule(*(getattr(home, _name) for home in _homes))(partial(_along, _name, _function))
rule(F.softmin)(lambda input, **options: F.softmax(-input, **options))
