"""Functions with several known minima."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.explore import FullMixture

ARMS = 5
HIMMELBLAU = torch.tensor(
    [
        [3.0, 2.0],
        [-2.805118086952745, 3.131312518250573],
        [-3.779310253377747, -3.283185991286170],
        [3.584428340330492, -1.848126526964404],
    ],
    dtype=torch.float64,
)
"""The four minima of `himmelblau`, all of value 0."""


def star() -> FullMixture:
    """Five Gaussians of means (1.5, 0) and precisions diag(1, 100), turned by 72 degrees each.

    Lin, Khan & Schmidt (2019) use it to show what mixtures learn. Its density has a mode on each
    arm, and one more where they cross.
    """
    angles = 2.0 * math.pi / ARMS * torch.arange(ARMS, dtype=torch.float64)
    turned = torch.stack(
        [torch.stack([angles.cos(), -angles.sin()]), torch.stack([angles.sin(), angles.cos()])]
    ).permute(2, 0, 1)
    precision = torch.diag(torch.tensor([1.0, 100.0], dtype=torch.float64))
    means = 1.5 * turned[:, :, 0]
    return FullMixture(means, turned @ precision @ turned.mT, torch.zeros_like(angles))


def himmelblau(x: Tensor) -> Tensor:
    """`(x₁² + x₂ − 11)² + (x₁ + x₂² − 7)²` of points (n, 2)."""
    a, b = x.unbind(-1)
    return (a**2 + b - 11.0) ** 2 + (a + b**2 - 7.0) ** 2


def divergence(q: FullMixture, p: FullMixture, edge: float = 7.0, cells: int = 700) -> float:
    """`KL(q ‖ p)` of two densities on a plane, summed over a grid."""
    axis = torch.linspace(-edge, edge, cells + 1, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    log_q, log_p = q.log_prob(points), p.log_prob(points)
    return float((log_q.exp() * (log_q - log_p)).sum() * (2.0 * edge / cells) ** 2)
