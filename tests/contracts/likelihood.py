"""What every likelihood p(y | f) must do, held against torch.distributions and against sums over y.

A subclass gives the likelihood, outputs for a few examples, targets, the same distribution as torch
has it, and all values that a single target may take (a fine grid where it is continuous).
"""

from __future__ import annotations

import math
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
    closed_form = True
    """Whether the likelihood can take Gaussian outputs."""
    gradient = False
    """Whether innovations are defined as the derivatives of `log p(y)` in the outputs' means."""
    off = 0.01
    """How far mean and variance of p(y) may be from averages over draws; 0.01 is chance alone."""
    off_epistemic = 0.01
    """How far the epistemic part of the variance may be from that of draws."""
    spread = 1.0
    """The variance of the Gaussian outputs that it is held against draws at."""

    def noise(self) -> Params:
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
        log_mass = self.likelihood.distribution(outputs, self.noise()).log_prob(targets)
        return outputs, targets, volume * log_mass.exp().reshape(len(y), len(self.targets))

    def test_log_prob(self) -> None:
        found = self.likelihood.log_prob(self.outputs, self.targets, self.noise())
        assert found.shape == (len(self.outputs),)
        close(found, self.expected_log_prob(self.outputs, self.targets))

    def test_log_prob_asks_no_other_device_for_a_number(self) -> None:
        # There are none on this device; on a GPU such a question waits, and no graph can have it.
        noise = {name: value.to("meta") for name, value in self.noise().items()}
        found = self.likelihood.log_prob(self.outputs.to("meta"), self.targets.to("meta"), noise)
        assert found.shape == (len(self.outputs),)

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

    def test_without_a_closed_form_the_way_out_is_named(self) -> None:
        if self.closed_form:
            return
        f, name = self.outputs, type(self.likelihood).__name__
        with pytest.raises(TypeError, match=f"{name} .* tagi"):
            self.likelihood.condition(f, f.square(), self.targets, self.noise())
        with pytest.raises(TypeError, match=rf"{name} .* Draws\(num\)"):
            self.likelihood.marginal(f, f.square(), self.noise())

    def test_condition_and_marginal_agree_on_p_of_y(self) -> None:
        if not self.closed_form:
            return
        given = self.outputs, self.variance()
        found = self.likelihood.condition(*given, self.targets, self.noise())
        assert found.delta.shape == found.eta.shape == self.outputs.shape
        log_prob = self.likelihood.marginal(*given, self.noise()).distribution.log_prob(
            self.targets
        )
        close(found.log_prob, log_prob.reshape(len(self.targets), -1).sum(1))

    def test_missing_targets_say_exactly_nothing(self) -> None:
        """Also beside others that are there."""
        if not self.closed_form:
            return
        given = self.outputs, self.variance()
        some, none = self.targets.clone(), self.no_targets()
        some[1:2] = none[1:2]
        whole = self.likelihood.condition(*given, self.targets, self.noise())
        mixed = self.likelihood.condition(*given, some, self.noise())
        empty = self.likelihood.condition(*given, none, self.noise())
        for name in ("delta", "eta", "log_prob"):
            assert not getattr(empty, name).count_nonzero()
            assert not getattr(mixed, name)[1].count_nonzero()
            assert torch.equal(getattr(mixed, name)[2:], getattr(whole, name)[2:])
        assert all(not value.count_nonzero() for value in empty.statistics.values())

    def test_many_networks_at_once(self) -> None:
        """`condition` under vmap is `condition` of each, in the type of the outputs."""
        if not self.closed_form:
            return
        means = torch.stack([self.outputs, self.outputs + 0.3]).float()
        variances = torch.stack([self.variance(), 2.0 * self.variance()]).float()
        noise = {k: v.float() if v.is_floating_point() else v for k, v in self.noise().items()}
        names = ("delta", "eta", "log_prob")

        def innovations(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
            found = self.likelihood.condition(mean, variance, self.targets, noise)
            return tuple(getattr(found, name) for name in names)

        for i, many in enumerate(torch.vmap(innovations)(means, variances)):
            each = [innovations(*pair)[i] for pair in zip(means, variances, strict=True)]
            assert many.dtype == torch.float32
            close(many, torch.stack(each), 1e-5)

    def test_innovations_are_derivatives_of_log_p(self) -> None:
        if not self.gradient:
            return
        mean = self.outputs.clone().requires_grad_()

        def log_prob(m: Tensor) -> Tensor:
            return self.likelihood.condition(
                m, self.variance(), self.targets, self.noise()
            ).log_prob

        found = self.likelihood.condition(mean, self.variance(), self.targets, self.noise())
        (first,) = torch.autograd.grad(log_prob(mean).sum(), mean)
        close(found.delta, first, 1e-12)
        whole = hessian(lambda m: log_prob(m).sum(), self.outputs)
        size = self.outputs.numel()
        close(found.eta.flatten(), whole.reshape(size, size).diagonal(), 1e-12)

    def test_marginal_is_the_average_over_outputs(self) -> None:
        """A million draws of the outputs: mean, both variances and their sum."""
        if not self.closed_form:
            return
        n, draws = len(self.outputs), 1_000_000 // len(self.outputs)
        variance = torch.full_like(self.outputs, self.spread)
        found = self.likelihood.marginal(self.outputs, variance, self.noise())
        white = torch.randn(draws, *self.outputs.shape, dtype=DTYPE, generator=generator(3))
        f = (self.outputs + self.spread**0.5 * white).flatten(0, 1)
        mean, around = (
            v.reshape(draws, n, *v.shape[1:]) for v in self.likelihood.moments(f, self.noise())
        )
        close(found.mean, mean.mean(0), self.off)
        close(found.epistemic, mean.var(0), self.off_epistemic)
        close(found.epistemic + found.aleatoric, mean.var(0) + around.mean(0), self.off)
        assert (found.epistemic >= 0).all()
        assert (found.aleatoric >= 0).all()
        told = found.distribution
        close(told.probs if hasattr(told, "probs") else told.mean, found.mean)
