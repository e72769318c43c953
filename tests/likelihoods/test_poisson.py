"""Counts whose variance is their mean."""

import torch
from contracts.likelihood import OneOutputContract
from exact import DTYPE, randn
from torch import Tensor
from torch.distributions import Distribution, Poisson

from bayesrule.likelihoods import PoissonLikelihood


class TestPoisson(OneOutputContract):
    likelihood = PoissonLikelihood()
    outputs = randn(4, 1, seed=3) + 0.5
    targets = torch.tensor([[0.0], [3.0], [1.0], [7.0]], dtype=DTYPE)
    bad_targets = (torch.tensor([[0.0], [-1.0], [2.0], [0.0]]), torch.full((4, 1), 0.5))

    def reference(self, outputs: Tensor) -> Distribution:
        return Poisson(outputs.exp())

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(0.0, 80.0, dtype=DTYPE), 1.0
