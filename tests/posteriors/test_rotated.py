"""Kronecker-factored Gaussians in their own bases against the same ones without."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import TableRows, close, columns, dense, flat, randn
from torch import Tensor, nn

import bayesrule as br
from bayesrule.matrices import Diagonal, Kronecker
from bayesrule.posteriors import (
    EarlierPosterior,
    Gaussian,
    GaussianFamily,
    Posterior,
    Rotated,
    RotatedFamily,
)
from bayesrule.tensors import vectors
from bayesrule.types import Params, State


class RotatedContract(FamilyContract):
    """The promises of a family, and to be the same as a twin in the usual bases."""

    structure: Kronecker

    @property
    def family(self) -> RotatedFamily:  # type: ignore[override]
        return RotatedFamily(self.structure, curvature=0.4)

    def twin(self, seed: int = 0) -> Gaussian:
        """The same belief in the usual bases."""
        rows = TableRows.random(PARAMS, 1, 4, seed=40 + seed)
        mean = {name: value + seed for name, value in PARAMS.items()}
        return Gaussian(mean, self.structure.contract(rows).damped(0.8))

    def posterior(self, seed: int = 0) -> Rotated:
        twin = self.twin(seed)
        return Rotated.of(twin.mean, twin.precision.spectral())  # type: ignore[attr-defined]

    def log_prob(self, q: Rotated, params: Params) -> Tensor:
        return q.log_prob(params)

    def test_is_its_twin(self) -> None:
        q, twin = self.posterior(), self.twin()
        close(q.kl(1.7), twin.kl(1.7))
        close(q.entropy(), twin.entropy())
        close(flat(q.mean), flat(twin.mean))
        close(flat(q.variance()), flat(twin.variance()))
        close(dense(q.precision, PARAMS), dense(twin.precision, PARAMS))
        if not self.structure.corrected:
            assert q.num_parameters == twin.num_parameters

    def test_draws_have_the_covariance(self) -> None:
        q = self.posterior()
        inner, bases = q.inner.precision, q.precision
        root = columns(lambda v: bases.from_bases(inner.inv_sqrt(bases.into_bases(v))), PARAMS)
        close(root @ root.mT, torch.linalg.inv(dense(self.twin().precision, PARAMS)))

    def test_its_bases_keep_lengths(self) -> None:
        precision = self.posterior().precision
        seen = precision.into_bases(PARAMS)
        close(vectors.dot(seen, seen), vectors.dot(PARAMS, PARAMS))
        close(flat(precision.from_bases(seen)), flat(PARAMS))

    def test_an_earlier_belief_pulls_in_other_bases_as_in_the_usual_ones(self) -> None:
        q, p, zeros = self.posterior(), self.twin(1), vectors.zeros_like(PARAMS)
        pulled = EarlierPosterior(p).pull_(zeros, q.mean, 0.3)
        for earlier in (p, self.posterior(1)):
            prior = q.seen(self.family.prior(earlier, PARAMS))
            at = q.coordinates().mean
            found = prior.pull_(vectors.zeros_like(at), at, 0.3)
            close(flat(q.precision.from_bases(found)), flat(pulled))

    def num_parameters(self, q: Posterior) -> int:
        """The bases and eigenvalues follow from the factors; they are kept, not learned."""
        twin = self.twin().num_parameters
        return twin - 3 * 4 if self.structure.corrected else twin


class TestFactored(RotatedContract):
    structure = Kronecker()


class TestExact(RotatedContract):
    structure = Kronecker(exact=True)


class TestCorrected(RotatedContract):
    structure = Kronecker(corrected=True)


def test_other_parameters_stay_as_they_are() -> None:
    params = {"w": PARAMS["w"], "scale": PARAMS["b"]}
    q = RotatedFamily(Kronecker()).init(params, weight=4.0, prior=0.5)
    assert set(q.rotated) == {"w", "scale"}
    close(q.rotated["scale"], params["scale"])
    close(q.variance()["scale"], params["scale"] * 0.0 + 1.0 / 4.5)
    assert set(q.precision.eigenvalues()) == {"w", "scale"}


def test_only_kronecker_has_such_bases() -> None:
    with pytest.raises(TypeError, match=r"takes Kronecker\(\), got Diagonal\(\); use Gaussian"):
        RotatedFamily(Diagonal())
    assert isinstance(RotatedFamily(Kronecker()), GaussianFamily)


@pytest.mark.parametrize("inverse_every", [1, 5])
@pytest.mark.parametrize("method", [br.noisy_kfac, br.noisy_ekfac])
def test_kronecker_factors_in_any_bases_learn_on(
    method: Callable[..., br.Learner], inverse_every: int
) -> None:
    """Whether the earlier belief was kept in eigenbases, and whether the later one is."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    batch = randn(20, 3, seed=1), randn(20, 1, seed=2)

    def learned(**options: Any) -> tuple[br.Learner, State]:
        likelihood = br.GaussianLikelihood(noise=0.5)
        learner = method(net.double(), likelihood, num_data=20, **options)
        return learner, learner.step(learner.init(), batch)[0]

    _, earlier = learned(inverse_every=inverse_every)
    learner, later = learned(prior=earlier.posterior)
    close(earlier.posterior.kl(learner.prior), 0.0)
    assert 0.0 < float(later.posterior.kl(learner.prior)) < float("inf")
