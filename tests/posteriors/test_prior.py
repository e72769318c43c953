"""What is believed before the data: pulls, precisions and descriptions of each kind of prior."""

import json
import math

import pytest
import torch
from exact import DTYPE, TableRows, close, dense, flat, randn
from torch import Tensor

from bayesrule.matrices import Dense, Diagonal, Isotropic, Kronecker, LowRank, Structure
from bayesrule.posteriors import (
    EarlierPosterior,
    Gaussian,
    GaussianFamily,
    GaussianPrior,
    MeanFieldFamily,
    PerGroup,
    PointEstimate,
    Prior,
    as_prior,
)
from bayesrule.posteriors.product import ProductPrior
from bayesrule.types import Params

PARAMS = {"w": randn(2, 2, seed=1), "b": randn(2, seed=2)}
AT = {"w": randn(2, 2, seed=3), "b": randn(2, seed=4)}
STRUCTURES: list[Structure] = [
    Isotropic(),
    Diagonal(),
    Dense(),
    LowRank(2),
    Kronecker(exact=True),
]


def earlier(structure: Structure) -> EarlierPosterior:
    rows = TableRows.random(PARAMS, 1, 4, seed=5)
    return EarlierPosterior(Gaussian(PARAMS, structure.contract(rows).damped(0.8)))


def log_density(precision: Tensor, centre: Params, at: Params) -> Tensor:
    delta = flat(at) - flat(centre)
    return -0.5 * delta @ precision @ delta


def explicit(prior: Prior) -> tuple[Tensor, Params]:
    """The precision (P, P) and the centre."""
    if prior.earlier is not None:
        return dense(prior.earlier.precision, PARAMS), prior.earlier.mean
    assert isinstance(prior, GaussianPrior)
    zero = {name: torch.zeros_like(value) for name, value in PARAMS.items()}
    return prior.precision * torch.eye(6, dtype=DTYPE), zero


PRIORS: dict[str, Prior] = {
    "gaussian": GaussianPrior(1.7),
    **{repr(structure): earlier(structure) for structure in STRUCTURES},
}
every_prior = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


@every_prior
@pytest.mark.parametrize("factor", [1.0, 0.3, torch.tensor(0.3, dtype=DTYPE)])
def test_the_pull_is_the_slope_of_minus_the_log_density(
    prior: Prior, factor: float | Tensor
) -> None:
    precision, centre = explicit(prior)
    leaves = {name: value.clone().requires_grad_() for name, value in AT.items()}
    value = -float(factor) * log_density(precision, centre, leaves)
    slopes = torch.autograd.grad(value, list(leaves.values()))
    gradient = {name: randn(*v.shape, seed=6) for name, v in PARAMS.items()}
    before = {name: v.clone() for name, v in gradient.items()}
    found = prior.pull_(gradient, AT, factor)
    for (name, start), slope in zip(before.items(), slopes, strict=True):
        assert found[name] is gradient[name], "in the gradient's place"
        close(found[name], start + slope)


# Sums of Kronecker factors are not sums of products; the structure's own contract has them.
@pytest.mark.parametrize("structure", STRUCTURES[:4], ids=repr)
def test_the_precision_is_added(structure: Structure) -> None:
    curvature = structure.contract(TableRows.random(PARAMS, 1, 4, seed=9))
    for prior in (GaussianPrior(1.7), earlier(structure)):
        total = prior.added_to(curvature)
        wanted = flat(curvature.diagonal()) + explicit(prior)[0].diagonal()
        close(flat(total.diagonal()), wanted)


@every_prior
def test_the_diagonal_is_that_of_the_precision(prior: Prior) -> None:
    found = prior.diagonal(PARAMS)
    wanted = explicit(prior)[0].diagonal()
    if isinstance(found, float):
        close(torch.full((6,), found, dtype=DTYPE), wanted)
    else:
        close(flat({name: found[name] for name in PARAMS}), wanted)


@every_prior
def test_its_description_can_be_written_down_and_tells_it_from_others(prior: Prior) -> None:
    written = json.dumps(prior.describe())
    others = [one for one in PRIORS.values() if one is not prior]
    assert all(json.dumps(one.describe()) != written for one in others)


def test_numbers_are_precisions() -> None:
    assert as_prior(2) == GaussianPrior(2.0)
    prior = earlier(Diagonal())
    assert as_prior(prior) is prior
    assert GaussianPrior(1.0).proper
    assert not GaussianPrior(0.0).proper
    assert earlier(Dense()).proper


@pytest.mark.parametrize("precision", [-1.0, math.inf, math.nan])
def test_precisions_that_make_no_sense_are_refused(precision: float) -> None:
    with pytest.raises(ValueError, match=f"must not be negative, got {precision}"):
        GaussianPrior(precision)


def test_an_earlier_belief_of_another_structure_is_refused() -> None:
    with pytest.raises(
        TypeError, match="DenseMatrix, which cannot be added to DiagonalMatrix; use"
    ):
        earlier(Dense()).added_to(Diagonal().identity(PARAMS, 1.0))
    with pytest.raises(TypeError, match="cannot be added"):
        GaussianFamily(Diagonal()).init(PARAMS, weight=1.0, prior=earlier(Dense()))


def test_a_belief_starts_with_the_precision_of_an_earlier_one() -> None:
    prior = earlier(Dense())
    q = GaussianFamily(Dense(), curvature=0.4).init(AT, weight=10.0, prior=prior)
    wanted = 4.0 * torch.eye(6, dtype=DTYPE) + explicit(prior)[0]
    close(dense(q.precision, PARAMS), wanted)
    spread = MeanFieldFamily(0.2).init(AT, weight=10.0, prior=earlier(Diagonal())).std()
    for name, value in earlier(Diagonal()).posterior.precision.diagonal().items():
        close(spread[name], 0.2 * value.rsqrt())


def test_a_prior_for_each_group() -> None:
    family = PerGroup({"b": PointEstimate(with_prior=False), "*": MeanFieldFamily()})
    prior = family.prior(3.0, PARAMS)
    assert isinstance(prior, ProductPrior)
    assert prior.parts == {"b": GaussianPrior(0.0), "*": GaussianPrior(3.0)}
    zero = {name: torch.zeros_like(value) for name, value in PARAMS.items()}
    pulled = prior.pull_({name: value.clone() for name, value in zero.items()}, AT, 0.5)
    close(pulled["b"], zero["b"], 0.0)
    close(pulled["w"], 1.5 * AT["w"])
    diagonal = prior.diagonal(PARAMS)
    close(diagonal["w"], torch.full((2, 2), 3.0, dtype=DTYPE))
    close(diagonal["b"], zero["b"], 0.0)
    assert not prior.proper
    assert json.loads(json.dumps(prior.describe())) == {"b": 0.0, "*": 3.0}
    assert family.prior(prior, PARAMS) == prior


def test_one_prior_for_all_groups_where_they_agree() -> None:
    family = PerGroup({"b": GaussianFamily(Dense()), "*": MeanFieldFamily()})
    assert family.prior(3.0, PARAMS) == GaussianPrior(3.0)


def test_the_precisions_of_groups_are_added_to_their_blocks() -> None:
    family = PerGroup({"b": GaussianFamily(Dense()), "*": GaussianFamily(Diagonal())})
    q = family.init(PARAMS, weight=10.0, prior=0.5)
    prior = family.prior(q, PARAMS)
    assert isinstance(prior, ProductPrior)
    total = prior.added_to(family.first_curvature(PARAMS, 2.0))
    close(flat(total.diagonal()), torch.full((6,), 10.5 + 2.0, dtype=DTYPE))


def test_earlier_beliefs_of_other_groups_are_refused() -> None:
    family = PerGroup({"b": GaussianFamily(Dense()), "*": GaussianFamily(Diagonal())})
    other = PerGroup({"w": GaussianFamily(Diagonal()), "*": GaussianFamily(Diagonal())})
    whole = Gaussian(PARAMS, Diagonal().identity(PARAMS, 2.0))
    for given in (whole, EarlierPosterior(whole), other.init(PARAMS, weight=1.0, prior=1.0)):
        with pytest.raises(
            TypeError, match=r"earlier posterior of the same groups, 'b', '\*', got"
        ):
            family.prior(given, PARAMS)
