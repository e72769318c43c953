"""Mean and variance of derivatives of outputs with respect to inputs, for Gaussian weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrule.learner import Learner
from bayesrule.predicting.predict import as_inputs, independent_variances
from bayesrule.types import Params, State

_REACH, _NODES = 9.0, 48


@dataclass(frozen=True, eq=False)
class DerivativeMoments:
    """The outputs (n, C) and their derivatives in each input (n, C, d): means and variances."""

    output_mean: Tensor
    output_variance: Tensor
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class _Pair:
    """Units z (n, 1, h) and their derivatives ż (n, d, h) in d inputs, jointly Gaussian."""

    mean: Tensor
    variance: Tensor
    slope: Tensor
    slope_variance: Tensor
    covariance: Tensor


@torch.no_grad()
def derivative_moments(learner: Learner, state: State, x: Any) -> DerivativeMoments:
    """Mean and variance of `∂ output / ∂ input` at inputs x (n, d), in closed form.

    For a chain of linear layers and elementwise activations with independent Gaussian weights, as
    `tagi` learns them. A unit z and its derivative ż are propagated as a Gaussian pair. Through a
    layer `ż = W ȧ`, and `cov(z, ż) = V (μ μ̇ + c) + W̄² c` with c the covariance of a and ȧ; through
    an activation `ȧ = φ'(z) ż`, whose moments are integrals over z alone. For one hidden layer they
    are exact; in deeper nets units are taken as independent, as TAGI takes them.

    >>> from bayesrule import GaussianLikelihood, tagi
    >>> learner = tagi(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=1)
    >>> state = learner.init()
    >>> moments = derivative_moments(learner, state, torch.ones(1, 2))
    >>> torch.equal(moments.mean[0], state.posterior.mean["weight"])
    True
    """
    inputs, variance = as_inputs(x, state), independent_variances(state)
    if not isinstance(inputs, Tensor) or inputs.ndim != 2:
        raise ValueError("Derivatives are taken in inputs (n, d) of one tensor.")
    n, d = inputs.shape
    zero = inputs.new_zeros(n, 1, d)
    eye = torch.eye(d, dtype=inputs.dtype, device=inputs.device).expand(n, d, d)
    pair = _Pair(inputs[:, None], zero, eye, torch.zeros_like(eye), torch.zeros_like(eye))
    for name, module in _chain(learner.model):
        if isinstance(module, nn.Linear):
            pair = _through_linear(pair, name, {**state.buffers, **state.posterior.mean}, variance)
        else:
            pair = _through_activation(pair, module)
    return DerivativeMoments(
        pair.mean[:, 0], pair.variance[:, 0], pair.slope.mT, pair.slope_variance.mT
    )


def _chain(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of a chain in order, with their names."""
    if isinstance(model, nn.Sequential):
        # Not named_children(), which leaves out an activation that is used a second time.
        for name, part in zip(model._modules, model, strict=True):
            yield from _chain(part, f"{prefix}{name}.")
    elif isinstance(model, nn.Identity):
        return
    elif isinstance(model, nn.Linear) or type(model) in _ACTIVATIONS:
        yield prefix, model
    else:
        known = ", ".join(sorted(kind.__name__ for kind in _ACTIVATIONS))
        raise TypeError(
            f"Derivative moments pass nn.Sequential of nn.Linear and {known}; layer {prefix!r} is "
            f"a {type(model).__name__}. For other networks differentiate draws of functions."
        )


_ACTIVATIONS = {nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.ELU}


def _through_linear(pair: _Pair, name: str, mean: Params, variance: Params) -> _Pair:
    """`z = W a + b` and `ż = W ȧ`."""
    weight = mean[f"{name}weight"]
    spread = variance.get(f"{name}weight", torch.zeros_like(weight))
    squares = weight.square()
    m, s = pair.mean @ weight.mT, _carried(pair.mean, pair.mean, pair.variance, squares, spread)
    m, s = m + mean.get(f"{name}bias", 0.0), s + variance.get(f"{name}bias", 0.0)
    slope = pair.slope @ weight.mT
    spread_of_slope = _carried(pair.slope, pair.slope, pair.slope_variance, squares, spread)
    together = _carried(pair.mean, pair.slope, pair.covariance, squares, spread)
    return _Pair(m, s, slope, spread_of_slope, together)


def _carried(a: Tensor, b: Tensor, covariance: Tensor, squares: Tensor, spread: Tensor) -> Tensor:
    """The covariance of `W a` and `W b` for each unit: `V (a b + c) + W̄² c`."""
    return (a * b + covariance) @ spread.mT + covariance @ squares.mT


def _through_activation(pair: _Pair, function: nn.Module) -> _Pair:
    """`a = φ(z)` and `ȧ = φ'(z) ż`, where ż is linear in z plus an independent part."""
    m, s = pair.mean, pair.variance
    u, weights = _nodes(m, s)
    with torch.enable_grad():
        z = (m + s.sqrt() * u).requires_grad_()
        value = function(z)
        (derivative,) = torch.autograd.grad(value.sum(), z)
    value = value.detach()
    safe = torch.where(s > 0, s, 1.0)
    along = pair.slope + pair.covariance / safe.sqrt() * u
    independent = (pair.slope_variance - pair.covariance.square() / safe).clamp_min(0.0)

    def expected(values: Tensor) -> Tensor:
        return (weights * values).sum(0)

    mean, slope = expected(value), expected(derivative * along)
    square = expected(derivative.square() * (along.square() + independent))
    return _Pair(
        mean,
        (expected(value.square()) - mean.square()).clamp_min(0.0),
        slope,
        (square - slope.square()).clamp_min(0.0),
        expected(value * derivative * along) - mean * slope,
    )


def _nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised points and weights (2 · nodes, *) on both sides of a kink at zero."""
    points, weights = (torch.as_tensor(a).to(mean) for a in _legendre())
    shape = (-1, *[1] * mean.ndim)
    points, weights = points.reshape(shape), weights.reshape(shape)
    tiny = torch.finfo(mean.dtype).tiny
    kink = (-mean / variance.sqrt().clamp_min(tiny**0.5)).clamp(-_REACH, _REACH)
    low, high = (kink + _REACH) / 2, (_REACH - kink) / 2
    u = torch.cat([kink - low + low * points, kink + high + high * points])
    density = torch.exp(-0.5 * u.square())
    weighted = torch.cat([low * weights, high * weights]) * density
    return u, weighted / weighted.sum(0)


@cache
def _legendre() -> tuple[Any, Any]:
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    return points, weights
