"""One step of torch's recurrent cells: Gaussians go forwards, innovations come back.

Two Gaussians drive a cell's gates: `W x + b` from the inputs and `W h + b` from the previous hidden
state. Means and variances of each gate z are those of a linear layer. Gates that share uncertain
inputs are correlated, `cov(z_a, z_b) = Σ_j w̄_aj w̄_bj σ²_j`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import torch
from torch import Tensor

from bayesrule.moments.closed_forms import matched_relu, tangent_relu
from bayesrule.moments.quadrature import Scalar, Triple, at_least_linear, little, nodes, positive
from bayesrule.moments.tensor import Activations, Innovation, Moments

States: TypeAlias = tuple[Moments, ...]
"""The hidden state and, for an LSTM, the cell state."""

Gate: TypeAlias = Callable[[Tensor, Tensor, Activations], Triple]
"""Turns mean and variance of z into mean, variance and slope of a function of z."""


@dataclass(frozen=True)
class Drive:
    """What the inputs, or the previous hidden state, add to the gates: moments (B, gates·H).

    `shared` (B, crosses·H) holds the covariances that it causes between gates; None without
    variance.
    """

    mean: Tensor
    variance: Tensor
    shared: Tensor | None


@dataclass(frozen=True)
class StepInnovations:
    """The innovations that go back from one step.

    `x` and `h` are those of the two drives, gate by gate. A quantity that enters several gates has
    `η_j = Σ_k η_k (Σ_a G_a w̄_aj)²`, with mixed terms; `cross_x` and `cross_h` are the coefficients
    of the products of weights in these. `former` goes to the previous states directly, bypassing
    the gates. `state` holds the complete innovations of the new states.
    """

    x: Innovation
    h: Innovation
    cross_x: Tensor | None
    cross_h: Tensor | None
    former: tuple[Innovation | None, ...]
    state: tuple[Innovation, ...]


Back: TypeAlias = Callable[[tuple[Innovation, ...]], StepInnovations]


@dataclass(frozen=True)
class Cell:
    """One step of a recurrent layer.

    `step(activations, x, h, state, loops)` takes the two drives of the gates and the previous
    states. It returns the new states and the function that takes their innovations back. `loops`
    (gates, H) are the mean weights from each unit to its own gates. `crosses` are pairs of gates
    with common inputs; the first `forward_crosses` of them are needed forwards, the others only on
    the way back.
    """

    step: Callable[[Activations, Drive, Drive, States, Tensor], tuple[States, Back]]
    gates: int
    crosses: tuple[tuple[int, int], ...] = ()
    forward_crosses: int = 0


def product_variance(a: Moments, b: Moments, covariance: Tensor | float = 0.0) -> Tensor:
    """`Var(ab)` of two correlated Gaussians."""
    (a_mean, a_var), (b_mean, b_var) = a, b
    plain = a_var * (b_mean.square() + b_var) + b_var * a_mean.square()
    return plain + covariance * (covariance + 2.0 * a_mean * b_mean)


def _times(factor: Tensor, innovation: Innovation) -> Innovation:
    return factor * innovation[0], factor.square() * innovation[1]


@lru_cache
def _nodes(num: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Hermite quadrature as tensors, (num, 1, 1) each."""
    pairs = torch.tensor(nodes(num), dtype=dtype, device=device)
    return pairs[:, :1, None], pairs[:, 1:, None]


def _matched(function: Scalar, value: Tensor, tangent: Tensor, m: Tensor, s: Tensor) -> Triple:
    """Moments by quadrature, at all nodes at once: for a step's small tensors, calls cost most.

    Ten nodes are accurate to 3e-3 up to a standard deviation of 1 (tanh) or 2 (sigmoid).
    """
    points, weights = _nodes(10, m.dtype, m.device)
    std = positive(s).sqrt()
    away = function(torch.addcmul(m, std, points)) - value
    weighted = away * weights
    first = weighted.sum(0)
    # For tiny variances the values at the nodes differ by little more than rounding errors.
    slope = torch.where(s < little(m.dtype), tangent, (weighted * points).sum(0) / std)
    variance = (weighted * away).sum(0) - first.square()
    return value + first, at_least_linear(variance, slope, s), slope


def _squashed(
    function: Scalar, derivative: Scalar, m: Tensor, s: Tensor, activations: Activations
) -> Triple:
    """Mean, variance and slope of a function; `derivative` takes the function's value."""
    value = function(m)
    slope = derivative(value)
    if activations.by_tangent:
        return value, slope.square() * s, slope
    return _matched(function, value, slope, m, s)


sigmoid = partial(_squashed, torch.sigmoid, lambda value: value * (1.0 - value))
tanh = partial(_squashed, torch.tanh, lambda value: 1.0 - value.square())


def relu(m: Tensor, s: Tensor, activations: Activations) -> Triple:
    """Mean, variance and slope of the rectifier."""
    return tangent_relu(m, s) if activations.by_tangent else matched_relu(m, s)


def _elman(
    function: Gate, activations: Activations, x: Drive, h: Drive, state: States, loops: Tensor
) -> tuple[States, Back]:
    """`h = φ(W x + b + W h₋ + b)`, φ = tanh or ReLU."""
    mean, variance, slope = function(x.mean + h.mean, x.variance + h.variance, activations)

    def back(learned: tuple[Innovation, ...]) -> StepInnovations:
        gate = _times(slope, learned[0])
        return StepInnovations(gate, gate, None, None, (None,), learned)

    return ((mean, variance),), back


def _lstm(
    activations: Activations, x: Drive, h: Drive, state: States, loops: Tensor
) -> tuple[States, Back]:
    """`c = f c₋ + i g`, `h = o tanh c`; the gates i, f, g, o are linear in [x, h₋].

    `c̄ = f̄ c̄₋ + ī ḡ + C_ig` and `h̄ = ō ā + C_oa`, where the covariances come from inputs that the
    gates share; Vuong, Nguyen & Goulet (2024). As there, the covariance of `f c₋` with `i g` is
    left out.
    """
    assert h.shared is not None
    mean, variance = x.mean + h.mean, x.variance + h.variance
    shared = h.shared if x.shared is None else x.shared + h.shared
    (mi, mf, mg, mo), (vi, vf, vg, vo) = mean.chunk(4, -1), variance.chunk(4, -1)
    ig, io, fo, go = shared.chunk(4, -1)
    c0, s0 = state[1]
    i, si, ji = sigmoid(mi, vi, activations)
    f, sf, jf = sigmoid(mf, vf, activations)
    g, sg, jg = tanh(mg, vg, activations)
    o, so, jo = sigmoid(mo, vo, activations)
    # Slopes of the cell state in the gates i, f and g; below, those of h in o and in c.
    to_i, to_f, to_g = ji * g, jf * c0, jg * i
    pair = ji * jg * ig
    c = f * c0 + i * g + pair
    sc = product_variance((f, sf), (c0, s0)) + product_variance((i, si), (g, sg), pair)
    a, sa, ja = tanh(c, sc, activations)
    both = ja * jo * (to_f * fo + to_i * io + to_g * go)
    to_o, to_c = jo * a, ja * o
    new = (o * a + both, product_variance((o, so), (a, sa), both)), (c, sc)

    def back(learned: tuple[Innovation, ...]) -> StepInnovations:
        on_h, later = learned
        near = _times(to_c, on_h)
        on_c = near[0] + later[0], near[1] + later[1]
        slopes = torch.cat([to_i, to_f, to_g], -1)
        deltas = slopes * on_c[0].repeat(1, 3), to_o * on_h[0]
        etas = slopes.square() * on_c[1].repeat(1, 3), to_o.square() * on_h[1]
        gate = torch.cat(deltas, -1), torch.cat(etas, -1)
        twice, through = 2.0 * on_c[1], 2.0 * to_o * to_c * on_h[1]
        mixed = [twice * to_i * to_g, through * to_i, through * to_f, through * to_g]
        mixed += [twice * to_i * to_f, twice * to_f * to_g]
        cross = torch.cat(mixed, -1)
        return StepInnovations(gate, gate, cross, cross, (None, _times(f, on_c)), (on_h, on_c))

    return new, back


def _gru(
    activations: Activations, x: Drive, h: Drive, state: States, loops: Tensor
) -> tuple[States, Back]:
    """`h = (1 − u) n + u h₋`, `n = tanh(W x + b + r (W h₋ + b))`; gates in the order r, u, n.

    With `p` and `q` the two drives of n: `E[rq] = r̄ q̄ + C_rq`, `Var(p + rq) = s_p + Var(rq) +
    2 q̄ C_rp`, and with `d = h₋ − n`, `h̄ = n̄ + ū d̄ + C_ud`, `s_h = s_n + Var(ud) + 2 (ū C_nd +
    d̄ C_nu)`. All covariances are kept, to first order in the slopes of the gates.
    """
    (xr, xu, p), (vxr, vxu, vp) = x.mean.chunk(3, -1), x.variance.chunk(3, -1)
    (hr, hu, q), (vhr, vhu, vq) = h.mean.chunk(3, -1), h.variance.chunk(3, -1)
    assert h.shared is not None
    by_h = h.shared.chunk(3, -1)
    by_x = (0.0, 0.0, 0.0) if x.shared is None else x.shared.chunk(3, -1)
    (h0, s0), (loop_r, loop_u, loop_n) = state[0], loops
    r, sr, jr = sigmoid(xr + hr, vxr + vhr, activations)
    u, su, ju = sigmoid(xu + hu, vxu + vhu, activations)
    rq = jr * by_h[1]
    inner = p + r * q + rq
    spread = vp + product_variance((r, sr), (q, vq), rq) + 2.0 * q * jr * by_x[1]
    n, sn, jn = tanh(inner, spread, activations)
    to_r = jn * q * jr
    # Covariances of u and n with each other, with the unit's previous value h₋ and with d = h₋ − n.
    with_n = ju * (to_r * (by_x[0] + by_h[0]) + jn * (by_x[2] + r * by_h[2]))
    n_self = (to_r * loop_r + jn * r * loop_n) * s0
    d, sd = h0 - n, s0 + sn - 2.0 * n_self
    ud = ju * loop_u * s0 - with_n
    mean = n + u * d + ud
    covariances = u * (n_self - sn) + d * with_n
    variance = sn + product_variance((u, su), (d, sd), ud) + 2.0 * covariances
    # The slopes of h in the gates; the drives of n have one each.
    keep = 1.0 - u
    slope_r, slope_u, slope_p, slope_q = keep * to_r, d * ju, keep * jn, keep * jn * r

    def back(learned: tuple[Innovation, ...]) -> StepInnovations:
        delta, eta = learned[0]
        to_x = torch.cat([slope_r, slope_u, slope_p], -1)
        to_h = torch.cat([slope_r, slope_u, slope_q], -1)
        deltas, etas = delta.repeat(1, 3), eta.repeat(1, 3)
        twice = 2.0 * eta
        ru = twice * slope_r * slope_u
        cross_x = torch.cat([ru, twice * slope_r * slope_p, twice * slope_u * slope_p], -1)
        cross_h = torch.cat([ru, twice * slope_r * slope_q, twice * slope_u * slope_q], -1)
        through = slope_r * loop_r + slope_u * loop_u + slope_q * loop_n
        former = u * delta, (u.square() + 2.0 * u * through) * eta
        on_x, on_h = _times(to_x, (deltas, etas)), _times(to_h, (deltas, etas))
        return StepInnovations(on_x, on_h, cross_x, cross_h, (former,), learned)

    return ((mean, variance.clamp_min(0.0)),), back


CELLS = {
    "lstm": Cell(_lstm, 4, ((0, 2), (0, 3), (1, 3), (2, 3), (0, 1), (1, 2)), 4),
    "gru": Cell(_gru, 3, ((0, 1), (0, 2), (1, 2)), 3),
    "rnn_tanh": Cell(partial(_elman, tanh), 1),
    "rnn_relu": Cell(partial(_elman, relu), 1),
}
"""The recurrent cells by torch's names."""
