"""The evidence of a Laplace approximation, and the prior that makes it largest."""

from __future__ import annotations

import pytest
import torch
from exact import DTYPE, close, flat, positive, randn
from torch import nn
from torch.distributions import MultivariateNormal

import bayesrule as br
from bayesrule.curvature._base import Here
from bayesrule.curvature.all_data import curvature_of_all, problems_of_all
from bayesrule.matrices import Matrix
from bayesrule.posteriors import evidence

MEAN = {"w": randn(2, 2, seed=1), "b": randn(2, seed=2)}
STRUCTURES = [
    br.matrices.Isotropic(),
    br.Diagonal(),
    br.Dense(),
    br.LowRank(6),
    br.matrices.Blocks({"w": br.Dense(), "*": br.matrices.Known()}),
]


def curvature(structure: br.matrices.Structure) -> Matrix:
    return structure.project(5.0 * positive(6, seed=3), MEAN)


def test_for_linear_regression_it_is_the_marginal_likelihood() -> None:
    x, y, noise = randn(30, 3, seed=4), randn(30, seed=5), 0.7
    hessian = x.mT @ x / noise**2
    found = []
    for prior in (0.3, 4.0):
        mean = torch.linalg.solve(hessian + prior * torch.eye(3, dtype=DTYPE), x.mT @ y / noise**2)
        matrix = br.Dense().project(hessian, {"w": mean})
        fit = float((y - x @ mean).square().sum()) / noise**2
        found.append(evidence.log_evidence(matrix, {"w": mean}, prior) - 0.5 * fit)
    exact = [
        MultivariateNormal(
            torch.zeros(30, dtype=DTYPE), x @ x.mT / prior + noise**2 * torch.eye(30, dtype=DTYPE)
        ).log_prob(y)
        for prior in (0.3, 4.0)
    ]
    close(torch.tensor(found[1] - found[0], dtype=DTYPE), exact[1] - exact[0])


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
def test_the_prior_found_is_a_maximum(structure: br.matrices.Structure, start: float) -> None:
    matrix = curvature(structure)
    best = evidence.prior_precision(matrix, MEAN, start, steps=200, tolerance=1e-9)
    top = evidence.log_evidence(matrix, MEAN, best)
    for factor in (0.8, 0.99, 1.01, 1.25):
        assert evidence.log_evidence(matrix, MEAN, factor * best) < top


def test_laplace_finds_the_prior_of_largest_evidence_for_every_structure() -> None:
    """The prior that is found is the best on a fine grid, and the belief has it."""
    x = randn(60, 3, seed=6)
    y = (x[:, 0] + x[:, 1].square() > 0.5).long()
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    for structure in (br.Kronecker(), br.Kronecker(exact=True), br.Diagonal(), br.Dense()):
        options = {"structure": structure, "empirical_prior": True, "learning_rate": 0.02}
        learner = br.laplace(model, br.CategoricalLikelihood(), num_data=60, **options)  # type: ignore[arg-type]
        state = learner.init()
        for _ in range(100):
            state, _ = learner.step(state, (x, y), donate=True)
        mean, kept = state.posterior.mean, learner.family.structure
        assert kept is not None
        assert learner.final_curvature is not None
        known = learner.finish(state, [(x, y)]).posterior.precision  # type: ignore[attr-defined]
        here = Here(state.posterior.at_mean(), kept, state.posterior)
        known_to = learner.network, learner.likelihood, learner.randomness
        problems = problems_of_all(*known_to, state, [(x, y)])
        curve = curvature_of_all(learner.final_curvature, problems, here, learner.weight)
        found = evidence.prior_precision(curve, mean)
        top = evidence.log_evidence(curve, mean, found)
        for factor in torch.linspace(-2.0, 2.0, 41).exp().tolist():
            assert evidence.log_evidence(curve, mean, factor * found) < top + 1e-4
        close(known.logdet(), curve.damped(found).logdet(), 1e-6)


def test_a_mean_of_zero_gives_a_large_and_finite_prior() -> None:
    zero = {k: torch.zeros_like(v) for k, v in MEAN.items()}
    assert 1e3 < evidence.prior_precision(curvature(br.Dense()), zero) <= 1e8


def test_laplace_uses_it_only_where_no_prior_is_asked_for() -> None:
    x, y = randn(40, 3, seed=6), torch.randint(0, 2, (40,))
    model = nn.Linear(3, 2).double()

    def precision(**options: object) -> torch.Tensor:
        learner = br.laplace(model, br.CategoricalLikelihood(), num_data=40, **options)  # type: ignore[arg-type]
        state = learner.finish(learner.init(), [(x, y)])
        assert isinstance(state.posterior, br.posteriors.Gaussian)
        return flat(state.posterior.precision.diagonal())

    plain, tuned = precision(prior_precision=1.0), precision()
    shift = tuned - plain
    close(shift, shift[0].expand_as(shift))
    assert float(shift[0].abs()) > 1e-3
    close(precision(empirical_prior=False), plain)
    close(precision(structure=br.Dense()), tuned)
    close(precision(structure=br.Dense(), prior_precision=1.0), plain)
