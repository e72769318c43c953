"""What every belief knows of others: entropy, divergences, and being the prior of later data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from exact import DTYPE, close, generator, same_mean
from torch import Tensor

from bayesrule.tensors import tree
from bayesrule.types import Params
from contracts.family_case import FamilyCase

ESTIMATES = 30


def estimates(value: Callable[..., Tensor]) -> Tensor:
    """A number that a belief may estimate from draws, from several generators."""
    return torch.stack([value(generator=generator(seed)) for seed in range(ESTIMATES)])


class PriorsContract(FamilyCase):
    """Tests that every family inherits: entropies and divergences, and priors of all kinds."""

    def test_entropy_is_minus_the_mean_log_density(self) -> None:
        q = self.posterior()
        found = torch.stack([self.log_prob(q, draw) for draw in self.draws()])
        same_mean(-found, estimates(q.entropy))

    def test_divergence_is_the_mean_log_ratio(self) -> None:
        q = self.posterior()
        ratios = [self.log_prob(q, d) - self.log_prior(d, 1.7) for d in self.draws()]
        for prior in (1.7, self.prior()) if self.family.takes_precision else (self.prior(),):
            same_mean(torch.stack(ratios), estimates(partial(q.kl, prior)))

    def test_a_number_is_refused_where_it_is_no_prior(self) -> None:
        if self.family.takes_precision:
            return
        for call in (self.posterior().kl, lambda one: self.family.prior(one, self.params)):
            with pytest.raises(TypeError, match=r"not a precision, got 1\.7"):
                call(1.7)

    def log_prior(self, params: Params, precision: float) -> Tensor:
        """`log N(θ; 0, I / precision)` of the weights that have a variance."""
        if not self.names:
            return torch.zeros((), dtype=DTYPE)
        theta = self.part(params)
        norm = 0.5 * len(theta) * math.log(precision / (2.0 * math.pi))
        return norm - 0.5 * precision * theta.square().sum()

    def test_an_improper_prior_is_infinitely_far(self) -> None:
        if self.family.takes_precision:
            assert self.posterior().kl(0.0) == (math.inf if self.names else 0.0)

    def test_divergence_from_an_earlier_belief(self) -> None:
        q, p = self.posterior(), self.posterior(1)
        close(q.kl(self.earlier(q)), 0.0)
        ratios = [self.log_prob(q, d) - self.log_prob(p, d) for d in self.draws()]
        same_mean(torch.stack(ratios), estimates(partial(q.kl, self.earlier(p))))

    def test_an_earlier_belief_is_kept_as_it_was(self) -> None:
        q, p = self.posterior(), tree.map_tensors(self.posterior(1), torch.clone)
        prior = self.earlier(p)
        before = q.kl(prior).clone()
        for value in p.state_dict().values():
            value.zero_()
        close(q.kl(prior), before, 0.0)

    def test_what_is_no_prior_is_refused(self) -> None:
        with pytest.raises(TypeError, match="got 'wide'"):
            self.family.prior("wide", self.params)

    def test_its_own_posterior_is_the_next_prior(self) -> None:
        """Continual learning: what was learned of earlier data is believed before later ones."""
        prior = self.earlier(self.posterior(1))
        first = self.family.init(self.params, weight=10.0, prior=prior)
        close(self.whole(first.mean), self.whole(self.params), 1e-12)
        assert bool(first.kl(prior, generator(1)).isfinite())
        if self.family.structure is None:
            return
        moved, _ = first.with_precision(
            prior.added_to(self.family.first_curvature(self.params, 10.0))
        )
        close(self.whole(moved.variance()), self.whole(first.variance()))
