"""Scalar functions of Gaussians: locally linear, or by their exact moments."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.choices import LocallyLinear
from bayesrule.moments.tensor import GaussianTensor, Innovation, rule


def elementwise(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, slope: Tensor
) -> GaussianTensor:
    """A scalar function of x from its moments; `slope = cov(φ(z), z) / Var z`."""

    def pull(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((slope * delta, slope.square() * eta),)

    return x.way.result(name, mean, variance, (x.node,), pull)


def _cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


def _pdf(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x.square()) * (1.0 / math.sqrt(2.0 * math.pi))


def matched_relu(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and slope of max(z, 0)."""
    std = s.sqrt()
    alpha = m / std
    cdf = _cdf(alpha)
    bulk = std * _pdf(alpha)
    mean = torch.addcmul(bulk, m, cdf)
    # E φ² − μ² with E φ² = (m² + s) Φ + m √s ϕ = m μ + s Φ
    variance = torch.addcmul(s * cdf, mean, m - mean)
    return mean.clamp_min(1e-6), variance.clamp_min(1e-6), cdf


@rule(F.relu, torch.relu, Tensor.relu)
def relu(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    m, s = input.centre, input.variance
    if isinstance(input.way.activations, LocallyLinear):
        slope = (m > 0).to(m.dtype)
        return elementwise("relu", input, m * slope, s * slope, slope)
    return elementwise("relu", input, *matched_relu(m, s))
