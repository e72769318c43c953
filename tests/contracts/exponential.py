"""What every exponential family must do: a subclass gives a batch and another, and inherits it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayesrule.families import ExponentialFamily, ImproperError

DRAWS = 40_000


class ExponentialContract:
    """Round trips, gradients of A, draws against closed forms; all in float64.

    `q` and `p` are two batches of one shape; `reference` is q in torch.distributions or scipy, by
    its log-densities (n, *batch) at points of q; `improper` are natural parameters to be refused.
    """

    q: ExponentialFamily
    p: ExponentialFamily
    improper: tuple[tuple[Tensor, ...], ...]
    shift_free = False

    def reference(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _draws(self) -> Tensor:
        return self.q.sample(DRAWS, torch.Generator().manual_seed(0))

    def test_expectation_is_the_gradient_of_the_log_partition(self) -> None:
        natural = tuple(part.clone().requires_grad_() for part in self.q.natural)
        found = torch.autograd.grad(type(self.q)(natural).log_partition.sum(), natural)
        for ours, gradient in zip(self.q.expectation, found, strict=True):
            torch.testing.assert_close(ours, gradient, rtol=1e-9, atol=1e-9)

    def test_natural_parameters_come_back_from_expectations(self) -> None:
        back = type(self.q).from_expectation(self.q.expectation)
        for ours, again in zip(self.q.natural, back.natural, strict=True):
            if self.shift_free:
                ours, again = ours.log_softmax(-1), again.log_softmax(-1)
            torch.testing.assert_close(again, ours, rtol=1e-7, atol=1e-7)

    def test_log_density_is_that_of_a_reference(self) -> None:
        x = self._draws()[:50]
        torch.testing.assert_close(self.q.log_prob(x), self.reference(x), rtol=1e-8, atol=1e-8)

    def test_draws_have_the_stated_expectations(self) -> None:
        x = self._draws()
        for part, stated in zip(self.q.statistics(x), self.q.expectation, strict=True):
            error = part.std(0) / DRAWS**0.5
            assert ((part.mean(0) - stated).abs() < 5.0 * error + 1e-12).all()

    def test_entropy_and_divergence_are_means_over_draws(self) -> None:
        x = self._draws()
        logs = self.q.log_prob(x)
        for stated, each in (
            (self.q.entropy, -logs),
            (self.q.kl(self.p), logs - self.p.log_prob(x)),
        ):
            error = each.std(0) / DRAWS**0.5
            assert ((each.mean(0) - stated).abs() < 5.0 * error + 1e-12).all()

    def test_divergence_is_zero_only_of_itself(self) -> None:
        assert self.q.kl(self.q).abs().max() < 1e-10
        assert (self.q.kl(self.p) > 1e-3).all()

    def test_batches_are_cut(self) -> None:
        torch.testing.assert_close(self.q[0].log_partition, self.q.log_partition[0])
        assert self.q.batch == self.q.log_partition.shape
        assert self.q.entropy.dtype == torch.float64

    def test_improper_parameters_are_refused_by_name(self) -> None:
        name = type(self.q).__name__
        for natural in self.improper:
            with pytest.raises(ImproperError, match=name):
                type(self.q)(natural)
        broken = tuple(torch.full_like(part, torch.nan) for part in self.q.natural)
        with pytest.raises(ImproperError, match=f"{name}.*not finite"):
            type(self.q)(broken)
        with pytest.raises(ValueError, match="natural parameters"):
            type(self.q)((*self.q.natural, *self.q.natural))
