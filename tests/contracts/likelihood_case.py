"""What a test of a likelihood gives: the likelihood, data, and the same distribution of torch."""

from __future__ import annotations

import math

import torch
from exact import DTYPE
from torch import Tensor
from torch.distributions import Distribution

from bayesrule.likelihoods import Likelihood
from bayesrule.types import Params


class LikelihoodCase:
    """One likelihood with outputs and targets, and what it is compared with."""

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    bad_targets: tuple[Tensor, ...] = ()
    glm = True
    """Whether the Fisher information is the Hessian, whatever the target is."""
    gradient = False
    """Whether innovations are defined as the derivatives of `log p(y)` in the outputs' means."""
    off = 0.01
    """How far mean and variance of p(y) may be from averages over draws; 0.01 is chance alone."""
    off_epistemic = 0.01
    """How far the epistemic part of the variance may be from that of draws."""
    spread = 1.0
    """The variance of the Gaussian outputs that it is held against draws at."""

    def state(self) -> Params:
        return self.likelihood.init(self.outputs)

    def no_targets(self) -> Tensor:
        """Targets that are all missing."""
        return torch.full_like(self.targets, math.nan)

    def variance(self) -> Tensor:
        """Variances of Gaussian outputs, all different."""
        return torch.linspace(0.1, 2.0, self.outputs.numel()).reshape(self.outputs.shape).to(DTYPE)

    def reference(self, outputs: Tensor) -> Distribution:
        """p(y | f) as torch has it, one for each target."""
        raise NotImplementedError

    def values(self) -> tuple[Tensor, float]:
        """All values (M,) of one target, and the volume that each stands for."""
        raise NotImplementedError

    def features(self, y: Tensor) -> Tensor:
        """What moments are taken of: y itself, or its one-hot code."""
        return y

    def expected_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.reference(outputs).log_prob(targets).reshape(len(targets), -1).sum(1)

    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every value at every example: outputs (M, n, *), targets (M, n, *), mass (M, n)."""
        y, volume = self.values()
        shape = (len(y), *self.targets.shape)
        targets = y.reshape(-1, *[1] * self.targets.ndim).expand(shape)
        outputs = self.outputs.expand(len(y), *self.outputs.shape)
        log_mass = self.likelihood.distribution(outputs, self.state()).log_prob(targets)
        return outputs, targets, volume * log_mass.exp().reshape(len(y), len(self.targets))
