"""Weights learned as numbers: no variance, and a prior that pulls as on the most probable ones."""

from typing import Any

import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close
from torch import Tensor, nn

import bayesrule as br
from bayesrule.matrices import KnownMatrix
from bayesrule.posteriors import GaussianPrior, PointBelief, PointEstimate


class TestPointEstimate(FamilyContract):
    family = PointEstimate()
    names = ()

    def posterior(self, seed: int = 0) -> PointBelief:
        return PointBelief({name: value + seed for name, value in PARAMS.items()})

    def log_prob(self, q: Any, params: Any) -> Tensor:
        """A single value has no density; nothing is counted for it."""
        return torch.zeros((), dtype=DTYPE)


class TestPointEstimateWithoutPrior(TestPointEstimate):
    family = PointEstimate(with_prior=False)

    def test_no_prior_pulls(self) -> None:
        assert self.family.prior(3.0, PARAMS) == GaussianPrior(0.0)


def test_its_precision_is_without_end() -> None:
    q = PointBelief(PARAMS)
    assert q.precision == q.coordinates().precision == KnownMatrix()
    assert q.draw(torch.Generator()).price(PARAMS) == KnownMatrix()


def test_the_linearised_prediction_of_a_value_is_certain() -> None:
    net, x = nn.Linear(2, 2).double(), torch.ones(5, 2, dtype=DTYPE)
    learner = br.Learner(
        net,
        br.GaussianLikelihood(noise=0.5),
        num_data=5,
        posterior=PointEstimate(),
        expectation=br.AtMean(),
        curvature=br.curvature.NoCurvature(),
        rule=br.Elbo(),
    )
    found = br.predict(learner, learner.init(), x, how=br.Linearised())
    close(found.mean, net(x).detach())
    close(found.epistemic, torch.zeros(5, 2, dtype=DTYPE), 0.0)
    close(found.aleatoric, torch.full((5, 2), 0.25, dtype=DTYPE))
