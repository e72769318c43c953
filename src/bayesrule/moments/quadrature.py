"""Moments of any scalar function of a Gaussian, by its tangent or by Gauss-Hermite quadrature."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bayesrule.moments.blocks import differentiated, in_blocks

Scalar: TypeAlias = Callable[[Tensor], Tensor]
"""An elementwise function."""

Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Mean, variance and slope `J = cov(φ(z), z) / Var z`."""


@lru_cache
def nodes(num: int) -> tuple[tuple[float, float], ...]:
    """Points and weights with `E f(t) ≈ Σ w_k f(t_k)`, t ~ N(0, 1); exact to degree 2 num − 1."""
    points, weights = np.polynomial.hermite_e.hermegauss(num)
    return tuple(zip(points.tolist(), (weights / weights.sum()).tolist(), strict=True))


def tangent(function: Scalar, m: Tensor) -> tuple[Tensor, Tensor]:
    """`φ(m)` and `φ'(m)`, elementwise."""
    value, back, *_ = torch.func.vjp(function, m)
    return value, back(torch.ones_like(m))[0]


def tangent_moments(function: Scalar, m: Tensor, s: Tensor) -> Triple:
    """`μ = φ(m)`, `J = φ'(m)`, `σ² = J² s`."""
    value, slope = tangent(function, m)
    return value, slope.square() * s, slope


def positive(variance: Tensor) -> Tensor:
    """The variance, or the smallest positive number where it is zero."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny)


def at_least_linear(variance: Tensor, slope: Tensor, s: Tensor) -> Tensor:
    """The variance, but at least `J² s`, the part that z explains: rounding may put it below."""
    return positive(torch.maximum(variance, slope.square() * s))


def quadrature(function: Scalar, m: Tensor, s: Tensor, num: int = 20) -> Triple:
    """Mean, variance and slope of φ(z), z ~ N(m, s), from `num` values of φ.

    Exact for polynomials up to the degree num − 1. The relative error of the variance of a sigmoid
    is 3e-8 at s = 1, 2e-4 at s = 4 and 4 % at s = 25, where it is nearly a step. Memory is a few
    tensors like m, however large `num` is. Mean and variance can be differentiated once.
    """
    if differentiated(m, s) and not function(m.detach()).requires_grad:
        return _differentiable(function, m, s, num)
    std = positive(s).sqrt()
    value, derivative = tangent(function, m)
    # Differences from φ(m) are summed, so that nothing large cancels, unless φ(m) is infinite.
    start = torch.where(value.isfinite(), value, 0.0)
    first = second = cross = torch.zeros_like(start)
    for point, weight in nodes(num):
        away = function(torch.add(m, std, alpha=point)) - start
        first = torch.add(first, away, alpha=weight)
        second = torch.addcmul(second, away, away, value=weight)
        cross = torch.add(cross, away, alpha=weight * point)
    # What overflows stays infinite; ∞ − ∞ would be NaN.
    variance = torch.where(second.isinf(), second, second - first.square())
    slope = torch.where(second.isinf(), second, cross / std)
    # There values at the nodes differ by little more than rounding errors, φ and tangent by less.
    slope = torch.where(s < _little(m.dtype), derivative, slope)
    return start + first, at_least_linear(variance, slope, s), slope


def _little(dtype: torch.dtype) -> float:
    """The variance below which φ and its tangent differ by less than rounding errors."""
    return torch.finfo(dtype).eps ** (2 / 3)


def with_slopes(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """A value to which autograd ascribes the derivatives of pairs `(x, ∂value/∂x)`, elementwise.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> y = with_slopes(torch.tensor(9.0), (x, torch.tensor(6.0)))
    >>> y.item(), torch.autograd.grad(y, x)
    (9.0, (tensor(6.),))
    """
    for x, slope in slopes:
        value = value + slope * (x - x.detach())
    return value


@torch.no_grad()
def _values(function: Scalar, m: Tensor, s: Tensor, num: int) -> tuple[Tensor, ...]:
    """Mean, variance and slope; the derivatives in m and s of the first two.

    `∂μ/∂m = E φ'`, `∂μ/∂s = E[φ' t] / 2√s`, `∂σ²/∂m = 2 Cov(φ, φ')`, `∂σ²/∂s = Cov(φ, φ' t) / √s`.
    """
    std = s.clamp_min(_little(m.dtype)).sqrt()
    start = function(m)
    first = rise = lean = joint = tilt = torch.zeros_like(m)
    for point, weight in nodes(num):
        with torch.enable_grad():
            z = torch.add(m, std, alpha=point).requires_grad_()
            value = function(z)
            (slope,) = torch.autograd.grad(value, z, torch.ones_like(z))
        away = value.detach() - start
        first = torch.add(first, away, alpha=weight)
        rise = torch.add(rise, slope, alpha=weight)
        lean = torch.add(lean, slope, alpha=weight * point)
        joint = torch.addcmul(joint, away, slope, value=weight)
        tilt = torch.addcmul(tilt, away, slope, value=weight * point)
    in_mean = rise, lean / (2.0 * std)
    in_variance = 2.0 * (joint - first * rise), (tilt - first * lean) / std
    return *quadrature(function, m, s, num), *in_mean, *in_variance


def _differentiable(function: Scalar, m: Tensor, s: Tensor, num: int) -> Triple:
    """The same, with derivatives that are computed along with the values.

    Autograd would keep the values of φ at all nodes. Only for functions without weights, whose
    gradients it would have to find.
    """
    values = in_blocks(partial(_values, function, num=num), m.detach(), s.detach(), num=7)
    mean, variance, slope, mean_by_m, mean_by_s, variance_by_m, variance_by_s = values
    mean = with_slopes(mean, (m, mean_by_m), (s, mean_by_s))
    return mean, with_slopes(variance, (m, variance_by_m), (s, variance_by_s)), slope
