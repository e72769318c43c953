"""What every likelihood p(y | f) must do, held against torch.distributions and against sums over y.

A subclass gives the likelihood, outputs for a few examples, targets, the same distribution as torch
has it, and all values that a single target may take (a fine grid where it is continuous).
"""

from __future__ import annotations

import re

import pytest
import torch
from exact import DTYPE, close, generator, z_close
from torch import Tensor
from torch.autograd.functional import hessian
from torch.distributions import Distribution

from bayesrule.likelihoods import Likelihood
from bayesrule.types import Params


class LikelihoodContract:
    """Tests that every likelihood inherits."""

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    bad_targets: tuple[Tensor, ...] = ()
    glm = True
    """Whether the Fisher information is the Hessian, whatever the target is."""

    def noise(self) -> Params:
        return self.likelihood.init(self.outputs)

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
        log_mass = self.likelihood.distribution(outputs, self.noise()).log_prob(targets)
        return outputs, targets, volume * log_mass.exp().reshape(len(y), len(self.targets))

    def test_log_prob(self) -> None:
        found = self.likelihood.log_prob(self.outputs, self.targets, self.noise())
        assert found.shape == (len(self.outputs),)
        close(found, self.expected_log_prob(self.outputs, self.targets))

    def test_distribution(self) -> None:
        """Also with a leading axis of draws."""
        stacked = torch.stack([self.outputs, self.outputs + 0.3])
        found = self.likelihood.distribution(stacked, self.noise()).log_prob(self.targets)
        for one, outputs in zip(found, stacked, strict=True):
            close(one, self.reference(outputs).log_prob(self.targets))

    def test_probabilities_sum_to_one(self) -> None:
        _, _, mass = self.table()
        close(mass.sum(0), torch.ones(len(self.outputs), dtype=DTYPE), 1e-9)

    def test_moments(self) -> None:
        _, targets, mass = self.table()
        mean, variance = self.likelihood.moments(self.outputs, self.noise())
        y = self.features(targets)
        mass = mass.reshape(*mass.shape, *[1] * (y.ndim - 2))
        close(mean, (mass * y).sum(0), 1e-8)
        close(variance, (mass * (y - mean).square()).sum(0), 1e-8)

    def test_samples_have_the_moments(self) -> None:
        many = self.outputs.repeat(4000, *[1] * (self.outputs.ndim - 1))
        drawn = self.likelihood.sample(many, self.noise(), generator(1))
        self.likelihood.check(many, drawn)
        y = self.features(drawn).reshape(4000, len(self.outputs), *self.features(drawn).shape[1:])
        mean, variance = self.likelihood.moments(self.outputs, self.noise())
        z_close(y, mean)
        z_close((y - mean).square(), variance)

    def test_samples_follow_their_generator(self) -> None:
        one, two = (
            self.likelihood.sample(self.outputs, self.noise(), generator(2)) for _ in range(2)
        )
        assert torch.equal(one, two)

    def fisher(self) -> Tensor:
        """`Σ_v L_v L_vᵀ`, (n, outputs, outputs)."""
        vectors = self.likelihood.fisher_vectors(self.outputs, self.noise())
        assert vectors.shape[1:] == self.outputs.shape
        rows = vectors.reshape(*vectors.shape[:2], -1)
        return torch.einsum("vni,vnj->nij", rows, rows)

    def test_fisher_is_the_mean_of_squared_scores(self) -> None:
        outputs, targets, mass = self.table()
        leaf = outputs.reshape(-1, *self.outputs.shape[1:]).clone().requires_grad_()
        many = targets.reshape(-1, *self.targets.shape[1:])
        total = self.likelihood.log_prob(leaf, many, self.noise()).sum()
        (score,) = torch.autograd.grad(total, leaf)
        score = score.reshape(*mass.shape, -1)
        close(self.fisher(), torch.einsum("mn,mni,mnj->nij", mass, score, score), 1e-8)

    def test_fisher_is_the_hessian(self) -> None:
        if not self.glm:
            return

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return -self.likelihood.log_prob(output[None], target[None], self.noise()).sum()

        for fisher, f, y in zip(self.fisher(), self.outputs, self.targets, strict=True):
            found = hessian(lambda output, y=y: loss(output, y), f)
            close(fisher, found.reshape(fisher.shape))

    def test_targets_that_do_not_fit_are_refused(self) -> None:
        n = len(self.outputs)
        misfits = (torch.zeros(n + 1), torch.zeros(n, 7), torch.zeros(1, n), torch.zeros(n, 1, 1))
        for bad in misfits:
            shape = re.escape(str(tuple(bad.shape)))
            with pytest.raises(ValueError, match=f"{type(self.likelihood).__name__}.*{shape}"):
                self.likelihood.log_prob(self.outputs, bad, self.noise())
        for bad in self.bad_targets:
            with pytest.raises(ValueError, match=r"needs|hold"):
                self.likelihood.log_prob(self.outputs, bad, self.noise())

    def test_update_without_noise_changes_nothing(self) -> None:
        noise = self.noise()
        if noise:
            return
        assert self.likelihood.statistics(self.outputs, self.targets) == {}
        assert self.likelihood.update(noise, {}, 10.0) == {}
