"""What every family of beliefs must do, and what a Gaussian over any structure must.

A subclass of `FamilyContract` gives a posterior and its `log_prob`; one of `GaussianContract` gives
only the structure.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from exact import DTYPE, TableRows, close, columns, dense, flat, generator, randn, z_close
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bayesrule.matrices import Structure
from bayesrule.posteriors import Family, Gaussian, GaussianFamily, Posterior
from bayesrule.tensors import tree
from bayesrule.types import Params

PARAMS = {"w": randn(2, 2, seed=21), "b": randn(2, seed=22)}
DRAWS = 2000


class FamilyContract:
    """Tests that every family inherits: moments, entropy and divergence against its own draws."""

    family: Family
    names: tuple[str, ...] = tuple(PARAMS)

    def posterior(self) -> Posterior:
        """A belief of the family that is not the first one."""
        raise NotImplementedError

    def log_prob(self, q: Any, params: Params) -> Tensor:
        """`log q(θ)` over `names`."""
        raise NotImplementedError

    @property
    def like(self) -> Params:
        """The weights that have a variance."""
        return {name: PARAMS[name] for name in self.names}

    def part(self, params: Params) -> Tensor:
        """Those weights as one vector."""
        return flat({name: params[name] for name in self.names})

    @classmethod
    @cache
    def draws(cls) -> list[Params]:
        """Independent draws of the weights, made once for each family."""
        q, source = cls().posterior(), generator(3)
        offsets = (q.offset(source) for _ in range(DRAWS))
        return [{k: v + offset[k] for k, v in q.mean.items()} for offset in offsets]

    def test_draws_have_the_mean_and_the_variance(self) -> None:
        q = self.posterior()
        flats = torch.stack([self.part(draw) for draw in self.draws()])
        z_close(flats, self.part(q.mean))
        z_close((flats - self.part(q.mean)).square(), self.part(q.variance()))

    def test_variance_is_named_and_shaped_as_the_weights(self) -> None:
        variance = self.posterior().variance()
        assert {k: v.shape for k, v in variance.items()} == {k: v.shape for k, v in PARAMS.items()}
        for name in PARAMS:
            assert bool((variance[name] > 0).all()) == (name in self.names)

    def test_entropy_is_minus_the_mean_log_density(self) -> None:
        q = self.posterior()
        found = torch.stack([self.log_prob(q, draw) for draw in self.draws()])
        z_close(-found, q.entropy())

    def test_divergence_is_the_mean_log_ratio(self) -> None:
        q = self.posterior()
        ratios = [self.log_prob(q, d) - self.log_prior(d, 1.7) for d in self.draws()]
        z_close(torch.stack(ratios), q.kl(1.7))

    def log_prior(self, params: Params, precision: float) -> Tensor:
        """`log N(θ; 0, I / precision)`."""
        theta = self.part(params)
        norm = 0.5 * len(theta) * math.log(precision / (2.0 * math.pi))
        return norm - 0.5 * precision * theta.square().sum()

    def test_an_improper_prior_is_infinitely_far(self) -> None:
        assert self.posterior().kl(0.0) == math.inf

    def test_same_generator_same_draw(self) -> None:
        q = self.posterior()
        one, two, other = (flat(q.offset(generator(seed))) for seed in (5, 5, 6))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)

    def test_state_dict_holds_the_whole_belief(self) -> None:
        q = self.posterior()
        kept = q.state_dict()
        assert all(isinstance(value, Tensor) for value in kept.values())
        start = self.family.init(PARAMS, weight=10.0, prior=0.5)
        assert set(start.state_dict()) == set(kept)
        again = tree.rebuild(start, lambda name, old: kept.get(name, old))
        close(flat(again.variance()), flat(q.variance()), 0.0)
        close(again.entropy(), q.entropy(), 0.0)
        assert q.num_parameters == sum(value.numel() for value in kept.values())

    def test_first_belief_starts_at_a_copy_of_the_weights(self) -> None:
        given = {name: value.clone() for name, value in PARAMS.items()}
        q = self.family.init(given, weight=10.0, prior=0.5)
        close(flat(q.mean), flat(PARAMS), 0.0)
        given["w"].zero_()
        close(flat(q.mean), flat(PARAMS), 0.0)


class GaussianContract(FamilyContract):
    """Tests that a Gaussian over every structure inherits: everything in closed form."""

    structure: Structure
    free: int
    """How many numbers the precision holds."""

    @property
    def family(self) -> Any:  # type: ignore[override]
        return GaussianFamily(self.structure, curvature=0.4)

    def posterior(self, seed: int = 0) -> Gaussian:
        rows = TableRows.random(PARAMS, 1, 4, seed=40 + seed)
        mean = {name: value + seed for name, value in PARAMS.items()}
        return Gaussian(mean, self.structure.contract(rows).damped(0.8))

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.log_prob(params)

    def reference(self, q: Gaussian) -> MultivariateNormal:
        """The same Gaussian as torch has it, over the weights with a variance."""
        return MultivariateNormal(
            self.part(q.mean), precision_matrix=dense(q.precision, self.like), validate_args=False
        )

    def test_log_prob(self) -> None:
        q = self.posterior()
        theta = {name: value + 0.3 for name, value in PARAMS.items()}
        close(q.log_prob(theta), self.reference(q).log_prob(self.part(theta)))

    def test_entropy(self) -> None:
        q = self.posterior()
        close(q.entropy(), self.reference(q).entropy())

    def test_divergence_from_the_prior(self) -> None:
        q = self.posterior()
        size = len(self.part(PARAMS))
        prior = MultivariateNormal(
            torch.zeros(size, dtype=DTYPE), torch.eye(size, dtype=DTYPE) / 1.7
        )
        close(q.kl(1.7), kl_divergence(self.reference(q), prior))

    def test_divergence_between_two(self) -> None:
        q, p = self.posterior(), self.posterior(1)
        close(q.kl_from(p), kl_divergence(self.reference(q), self.reference(p)))
        close(q.kl_from(q), 0.0)

    def test_draws_have_the_covariance(self) -> None:
        q = self.posterior()
        centred = torch.stack([self.part(draw) for draw in self.draws()]) - self.part(q.mean)
        products = centred.unsqueeze(2) * centred.unsqueeze(1)
        z_close(products, torch.linalg.inv(dense(q.precision, self.like)))
        root = columns(q.precision.inv_sqrt, self.like)
        close(root @ root.mT, torch.linalg.inv(dense(q.precision, self.like)))

    def test_sample_is_mean_and_offset(self) -> None:
        q = self.posterior()
        draw, offset = q.sample(generator(1)), q.offset(generator(1))
        close(flat(draw), flat(q.mean) + flat(offset), 0.0)

    def test_natural_parameters_both_ways(self) -> None:
        q = self.posterior()
        first, second = q.natural()
        close(self.part(first), dense(q.precision, self.like) @ self.part(q.mean))
        again = Gaussian.from_natural(first, second)
        close(self.part(again.mean), self.part(q.mean))
        close(dense(again.precision, self.like), dense(q.precision, self.like))

    def test_number_of_parameters(self) -> None:
        assert self.posterior().num_parameters == len(flat(PARAMS)) + self.free

    def test_first_precision_is_that_of_the_data_and_the_prior(self) -> None:
        q = self.family.init(PARAMS, weight=10.0, prior=0.5)
        size = len(self.part(PARAMS))
        close(dense(q.precision, self.like), 4.5 * torch.eye(size, dtype=DTYPE))
