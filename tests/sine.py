"""A small regression problem, and learners for it that are the same each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import bayesrule
from bayesrule import Dense, GaussianLikelihood, Learner

X = torch.linspace(-2.0, 2.0, 20).unsqueeze(1)
Y = X.sin()


def net(*extra: nn.Module) -> nn.Module:
    """A small net, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), *extra, nn.Tanh(), nn.Linear(6, 1))


def vogn(**options: Any) -> Learner:
    """VOGN on a net that draws (dropout) and keeps statistics (batch norm), with learned noise."""
    module = net(nn.BatchNorm1d(6), nn.Dropout(0.2))
    given: dict[str, Any] = {"num_data": 20, "learning_rate": 0.1, "rate": 1e-3, **options}
    return bayesrule.vogn(module, GaussianLikelihood(), **given)


def laplace(learning_rate: float = 0.05) -> Learner:
    """Laplace: something is left to do once training ends."""
    given: dict[str, Any] = {"num_data": 20, "learning_rate": learning_rate}
    return bayesrule.laplace(net(), GaussianLikelihood(noise=0.3), structure=Dense(), **given)


def quick(learning_rate: float = 0.01) -> Learner:
    """The cheapest learner."""
    likelihood = GaussianLikelihood(noise=1.0)
    return bayesrule.map(net(), likelihood, num_data=20, learning_rate=learning_rate)
