"""Mean, variance and slope of functions whose Gaussian moments have a closed form.

Each function takes the means m and variances s of z and returns `E φ(z)`, `Var φ(z)` and
`J = cov(φ(z), z) / s = E φ'(z)`. Φ and ϕ are the normal distribution and density, `α = m / √s`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.moments.quadrature import Triple, at_least_linear, differentiated, positive


def _cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


def _pdf(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x.square()) * (1.0 / math.sqrt(2.0 * math.pi))


# Limits on −√½ m / √s. At the limit for negative m, Φ is 2e-11: small beside √s, but far from
# denormal numbers, which are slow on processors. At the one for positive m, Φ is 1 even in float64.
_EDGES = -7.0, 4.7


def matched_relu(m: Tensor, s: Tensor, out: Sequence[Tensor | None] = (None, None, None)) -> Triple:
    """max(z, 0): `μ = m Φ + √s ϕ`, `σ² = s Φ + μ (m − μ)`, `J = Φ`, at α.

    At 6.6 standard deviations below zero and beyond, the mean is 0 and the variance 2e-11 s.
    """
    if differentiated(m, s):
        return _relu_anew(m, s)
    # In place, to save passes over memory: this is most of a network's elementwise work.
    std = positive(s).sqrt_()
    below = (m / std).mul_(-math.sqrt(0.5)).clamp(*_EDGES)
    cdf = torch.erfc(below, out=out[2]).mul_(0.5)
    bulk = below.mul_(below).neg_().exp_().mul_(std).mul_(1.0 / math.sqrt(2.0 * math.pi))
    mean = torch.clamp_min(torch.addcmul(bulk, m, cdf), 0.0, out=out[0])
    # E φ² − μ² with E φ² = (m² + s) Φ + m √s ϕ = m μ + s Φ; rounding may make it negative.
    variance = torch.addcmul((m - mean).mul_(mean), s, cdf)
    return mean, torch.clamp_min(variance, torch.finfo(s.dtype).tiny, out=out[1]), cdf


def _relu_anew(m: Tensor, s: Tensor) -> Triple:
    """The same values without in-place operations, which autograd cannot differentiate."""
    std = positive(s).sqrt()
    below = (m / std * -math.sqrt(0.5)).clamp(*_EDGES)
    cdf = 0.5 * torch.erfc(below)
    bulk = torch.exp(-below.square()) * std * (1.0 / math.sqrt(2.0 * math.pi))
    mean = torch.addcmul(bulk, m, cdf).clamp_min(0.0)
    return mean, positive(torch.addcmul((m - mean) * mean, s, cdf)), cdf


def tangent_relu(m: Tensor, s: Tensor) -> Triple:
    """The tangent of max(z, 0) at the mean."""
    slope = (m > 0).to(m.dtype)
    return m * slope, s * slope, slope


def matched_leaky_relu(m: Tensor, s: Tensor, negative_slope: float) -> Triple:
    """`a z + (1 − a) max(z, 0)`, with slope a below zero; a = −1 gives |z|."""
    a, b = negative_slope, 1.0 - negative_slope
    top, spread, cdf = matched_relu(m, s)
    variance = a * a * s + b * b * spread + 2.0 * a * b * s * cdf
    j = a + b * cdf
    return a * m + b * top, at_least_linear(variance, j, s), j


def matched_hardtanh(m: Tensor, s: Tensor, min_val: float, max_val: float) -> Triple:
    """z clamped to an interval; `J = Φ(b) − Φ(a)` with its ends a, b in standard units.

    Moments are taken about the clamped mean, where little cancels.
    """
    low, high = min_val, max_val
    std = positive(s).sqrt()
    centre = m.clamp(low, high)
    a, b = (low - m) / std, (high - m) / std
    below, above = _cdf(a), _cdf(-b)
    inside = (1.0 - below - above).clamp_min(0.0)
    left, right = std * _pdf(a), std * _pdf(b)
    down, up, off = low - centre, high - centre, m - centre
    first = down * below + up * above + off * inside + left - right
    second = down.square() * below + up.square() * above + (off.square() + s) * inside
    second = second + left * (off + down) - right * (off + up)
    variance = at_least_linear(second - first.square(), inside, s)
    return centre + first, variance, inside


def matched_elu(m: Tensor, s: Tensor, alpha: float = 1.0, scale: float = 1.0) -> Triple:
    """`c z` above zero and `c a (e^z − 1)` below, with a, c = `alpha`, `scale`.

    Always computed in float64, because the part below zero is a second difference.
    """
    centre, spread = m.double(), positive(s).double()
    top, wide, cdf = matched_relu(centre, spread)
    tail1, tail2 = _tail_exp(centre, spread, 1.0), _tail_exp(centre, spread, 2.0)
    tail0 = _cdf(-centre / spread.sqrt())
    low = alpha * (tail1 - tail0)
    below = alpha * alpha * (tail2 - 2.0 * tail1 + tail0)
    slope = cdf + alpha * tail1
    # One of the two parts is always zero, so their covariance is minus the product of their means.
    variance = at_least_linear(wide + below - low.square() - 2.0 * top * low, slope, spread)
    mean, variance, slope = scale * (top + low), scale * scale * variance, scale * slope
    return mean.to(m.dtype), positive(variance.to(m.dtype)), slope.to(m.dtype)


def _tail_exp(m: Tensor, s: Tensor, k: float) -> Tensor:
    """`E[e^{kz}; z < 0] = e^{km + k²s/2} Φ(−(m + ks)/√s)`, also where the exponential overflows."""
    edge = (m + k * s) / (2.0 * s).sqrt()
    # The unused branch must be finite too, because autograd multiplies it by zero.
    power = torch.where(edge > 0, 0.0, k * m + 0.5 * k * k * s)
    near = torch.exp(power) * 0.5 * torch.erfc(edge)
    far = torch.exp(-m.square() / (2.0 * s)) * 0.5 * torch.special.erfcx(edge.clamp_min(0.0))
    return torch.where(edge > 0, far, near)


def matched_celu(m: Tensor, s: Tensor, alpha: float) -> Triple:
    """`α ELU(z/α)`."""
    mean, variance, slope = matched_elu(m / alpha, s / alpha**2)
    return alpha * mean, alpha**2 * variance, slope


def matched_hardsigmoid(m: Tensor, s: Tensor) -> Triple:
    """`½ + z/6` clamped to [0, 1]: a sixth of z clamped to ±3."""
    mean, variance, slope = matched_hardtanh(m, s, -3.0, 3.0)
    return 0.5 + mean / 6.0, variance / 36.0, slope / 6.0


def matched_exp(m: Tensor, s: Tensor) -> Triple:
    """`e^z`, log-normal: `μ = e^{m + s/2}`, `σ² = e^{2m + s}(e^s − 1)`, `J = μ`."""
    mean = torch.exp(m + 0.5 * s)
    # (e^s − 1) e^{−s} stays finite where e^s does not.
    variance = torch.exp(2.0 * (m + s)) * positive(-torch.expm1(-s))
    return mean, positive(variance), mean


def matched_power(m: Tensor, s: Tensor, power: float) -> Triple:
    """`z^p` of a positive z, taken as log-normal; NaN where m < 0, as for plain tensors."""
    s_ln = torch.log1p(s / m.square())
    mean = torch.exp(power * torch.log(m) + 0.5 * power * (power - 1.0) * s_ln)
    variance = mean.square() * torch.expm1(power * power * s_ln)
    slope = mean * torch.expm1(power * s_ln) * m / positive(s)
    return mean, positive(variance), slope


def matched_log(m: Tensor, s: Tensor) -> Triple:
    """`ln z` of a positive z, taken as log-normal; NaN where m < 0, as for plain tensors.

    `σ² = ln(1 + s/m²)`, `μ = ln m − σ²/2`, `J = m σ² / s`.
    """
    variance = torch.log1p(s / m.square())
    return torch.log(m) - 0.5 * variance, positive(variance), m * variance / positive(s)


def matched_square(m: Tensor, s: Tensor) -> Triple:
    """`z²`: `μ = m² + s`, `σ² = 4 m² s + 2 s²`, `J = 2 m`."""
    squared = m.square()
    return squared + s, 2.0 * s * (2.0 * squared + s), 2.0 * m


def matched_sin(m: Tensor, s: Tensor) -> Triple:
    """`sin z`: `μ = e^{−s/2} sin m`, `J = e^{−s/2} cos m`; with `w = 1 − e^{−s}`,
    `σ² = w (w/2 + e^{−s} cos² m)`.
    """
    return _wave(torch.sin(m), torch.cos(m), s)


def matched_cos(m: Tensor, s: Tensor) -> Triple:
    """`cos z`: as `sin z` with sine and cosine exchanged, and `J = −e^{−s/2} sin m`."""
    return _wave(torch.cos(m), -torch.sin(m), s)


def _wave(value: Tensor, derivative: Tensor, s: Tensor) -> Triple:
    decay, w = torch.exp(-0.5 * s), -torch.expm1(-s)
    slope = decay * derivative
    return decay * value, positive(w * (0.5 * w + slope.square())), slope
