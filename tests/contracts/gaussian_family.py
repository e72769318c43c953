"""What a Gaussian over any structure must do: a subclass gives only the structure."""

from __future__ import annotations

from typing import Any

import torch
from exact import DTYPE, close, columns, dense, flat, generator, z_close
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bayesrule.matrices import Structure
from bayesrule.posteriors import Gaussian, GaussianFamily
from bayesrule.types import Params
from contracts.family import FamilyContract


class GaussianContract(FamilyContract):
    """Tests that a Gaussian over every structure inherits: everything in closed form."""

    structure: Structure
    free: int
    """How many numbers the precision holds."""
    adds_damping = True
    """Whether damping adds a multiple of the identity, and not to each of two factors."""

    @property
    def family(self) -> Any:  # type: ignore[override]
        return GaussianFamily(self.structure, curvature=0.4)

    def posterior(self, seed: int = 0) -> Gaussian:
        mean = {name: value + seed for name, value in self.params.items()}
        return Gaussian(mean, self.structure.contract(self.rows(40 + seed)).damped(0.8))

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.log_prob(params)

    def reference(self, q: Gaussian) -> MultivariateNormal:
        """The same Gaussian as torch has it, over the weights with a variance."""
        return MultivariateNormal(
            self.part(q.mean), precision_matrix=dense(q.precision, self.like), validate_args=False
        )

    def test_log_prob(self) -> None:
        q = self.posterior()
        theta = {name: value + 0.3 for name, value in self.params.items()}
        close(q.log_prob(theta), self.reference(q).log_prob(self.part(theta)))

    def test_entropy(self) -> None:
        q = self.posterior()
        close(q.entropy(), self.reference(q).entropy())

    def test_divergence_from_the_prior(self) -> None:
        q = self.posterior()
        size = len(self.part(self.params))
        prior = MultivariateNormal(
            torch.zeros(size, dtype=DTYPE), torch.eye(size, dtype=DTYPE) / 1.7
        )
        close(q.kl(1.7), kl_divergence(self.reference(q), prior))

    def test_divergence_between_two(self) -> None:
        q, p = self.posterior(), self.posterior(1)
        close(q.kl_from(p), kl_divergence(self.reference(q), self.reference(p)))
        close(q.kl(self.earlier(p)), kl_divergence(self.reference(q), self.reference(p)))
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
        close(self.whole(draw), self.whole(q.mean) + self.whole(offset), 0.0)

    def test_natural_parameters_both_ways(self) -> None:
        q = self.posterior()
        first, second = q.natural()
        close(self.part(first), dense(q.precision, self.like) @ self.part(q.mean))
        again = Gaussian.from_natural(first, second)
        close(self.part(again.mean), self.part(q.mean))
        close(dense(again.precision, self.like), dense(q.precision, self.like))

    def test_number_of_parameters(self) -> None:
        assert self.posterior().num_parameters == len(flat(self.params)) + self.free

    def test_first_precision_is_that_of_the_data_and_the_prior(self) -> None:
        q = self.family.init(self.params, weight=10.0, prior=0.5)
        wanted = dense(self.structure.identity(self.params, 4.0).damped(0.5), self.like)
        close(dense(q.precision, self.like), wanted)
        if self.adds_damping:
            close(wanted, 4.5 * torch.eye(len(wanted), dtype=DTYPE))
