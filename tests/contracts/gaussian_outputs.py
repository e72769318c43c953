"""What likelihoods must do that take Gaussian outputs in closed form."""

from __future__ import annotations

import torch
from exact import DTYPE, close, generator
from torch import Tensor
from torch.autograd.functional import hessian

from contracts.likelihood_case import LikelihoodCase


class GaussianOutputsContract(LikelihoodCase):
    """Tests of `condition`, `marginal` and `joint_marginal`; what is lacking is left out."""

    def test_outputs_that_vary_together(self) -> None:
        """Without correlations it is `marginal`."""
        if self.likelihood.lacks("marginal"):
            return
        covariance = torch.diag_embed(self.variance().reshape(len(self.outputs), -1))
        found = self.likelihood.joint_marginal(self.outputs, covariance, self.state())
        wanted = self.likelihood.marginal(self.outputs, self.variance(), self.state())
        for name in ("mean", "epistemic", "aleatoric"):
            close(getattr(found, name), getattr(wanted, name), 1e-12)
        close(found.distribution.log_prob(self.targets), wanted.distribution.log_prob(self.targets))

    def test_condition_and_marginal_agree_on_p_of_y(self) -> None:
        if self.likelihood.lacks("condition"):
            return
        given = self.outputs, self.variance()
        found = self.likelihood.condition(*given, self.targets, self.state())
        assert found.delta.shape == found.eta.shape == self.outputs.shape
        log_prob = self.likelihood.marginal(*given, self.state()).distribution.log_prob(
            self.targets
        )
        close(found.log_prob, log_prob.reshape(len(self.targets), -1).sum(1))

    def test_missing_targets_say_exactly_nothing(self) -> None:
        """Also beside others that are there."""
        if self.likelihood.lacks("condition"):
            return
        given = self.outputs, self.variance()
        some, none = self.targets.clone(), self.no_targets()
        some[1:2] = none[1:2]
        whole = self.likelihood.condition(*given, self.targets, self.state())
        mixed = self.likelihood.condition(*given, some, self.state())
        empty = self.likelihood.condition(*given, none, self.state())
        for name in ("delta", "eta", "log_prob"):
            assert not getattr(empty, name).count_nonzero()
            assert not getattr(mixed, name)[1].count_nonzero()
            assert torch.equal(getattr(mixed, name)[2:], getattr(whole, name)[2:])
        assert all(not value.count_nonzero() for value in empty.statistics.values())

    def test_many_networks_at_once(self) -> None:
        """`condition` under vmap is `condition` of each, in the type of the outputs."""
        if self.likelihood.lacks("condition"):
            return
        means = torch.stack([self.outputs, self.outputs + 0.3]).float()
        variances = torch.stack([self.variance(), 2.0 * self.variance()]).float()
        state = {k: v.float() if v.is_floating_point() else v for k, v in self.state().items()}
        names = ("delta", "eta", "log_prob")

        def innovations(mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
            found = self.likelihood.condition(mean, variance, self.targets, state)
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
                m, self.variance(), self.targets, self.state()
            ).log_prob

        found = self.likelihood.condition(mean, self.variance(), self.targets, self.state())
        (first,) = torch.autograd.grad(log_prob(mean).sum(), mean)
        close(found.delta, first, 1e-12)
        whole = hessian(lambda m: log_prob(m).sum(), self.outputs)
        size = self.outputs.numel()
        close(found.eta.flatten(), whole.reshape(size, size).diagonal(), 1e-12)

    def test_marginal_is_the_average_over_outputs(self) -> None:
        """A million draws of the outputs: mean, both variances and their sum."""
        if self.likelihood.lacks("marginal"):
            return
        n, draws = len(self.outputs), 1_000_000 // len(self.outputs)
        variance = torch.full_like(self.outputs, self.spread)
        found = self.likelihood.marginal(self.outputs, variance, self.state())
        white = torch.randn(draws, *self.outputs.shape, dtype=DTYPE, generator=generator(3))
        f = (self.outputs + self.spread**0.5 * white).flatten(0, 1)
        mean, around = (
            v.reshape(draws, n, *v.shape[1:]) for v in self.likelihood.moments(f, self.state())
        )
        close(found.mean, mean.mean(0), self.off)
        close(found.epistemic, mean.var(0), self.off_epistemic)
        close(found.epistemic + found.aleatoric, mean.var(0) + around.mean(0), self.off)
        assert (found.epistemic >= 0).all()
        assert (found.aleatoric >= 0).all()
        close(found.distribution.mean, found.mean)
