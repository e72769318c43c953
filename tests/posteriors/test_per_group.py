"""Products of beliefs against the one Gaussian with the same block-diagonal precision."""

import itertools
from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, TableRows, close, dense, flat, generator, randn, z_close
from torch import Tensor, nn
from torch.distributions import Normal

import bayesrule as br
from bayesrule.matrices import (
    BlockMatrix,
    Blocks,
    Dense,
    DenseMatrix,
    Diagonal,
    Isotropic,
    Known,
    Kronecker,
    LowRank,
)
from bayesrule.posteriors import (
    Family,
    Gaussian,
    GaussianFamily,
    KTied,
    KTiedFamily,
    MeanField,
    MeanFieldFamily,
    PerGroup,
    PointBelief,
    PointEstimate,
    Posterior,
    Product,
    RotatedFamily,
)
from bayesrule.types import Params

GROUPS = {"b": ("b",), "*": ("w",)}


def moved(name: str, seed: int) -> Params:
    return {name: PARAMS[name] + 0.5 * seed}


def gaussian(name: str, structure: Any, seed: int = 0) -> Gaussian:
    rows = TableRows.random({name: PARAMS[name]}, 1, 4, seed=40 + seed)
    return Gaussian(moved(name, seed), structure.contract(rows).damped(0.8))


def mean_field(name: str, seed: int = 0) -> MeanField:
    return MeanField(moved(name, seed), {name: 0.3 * randn(*PARAMS[name].shape, seed=31) - 0.5})


def log_normal(q: Any, params: Params) -> Tensor:
    """`log q` of independent normals."""
    each = [Normal(q.mean[k], s).log_prob(params[k]).sum() for k, s in q.std().items()]
    return torch.stack(each).sum()


class TestDenseAndDiagonal(FamilyContract):
    family = PerGroup(
        {"b": GaussianFamily(Dense(), 0.4), "*": GaussianFamily(Diagonal(), curvature=0.7)}
    )

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": gaussian("b", Dense(), seed),
            "*": gaussian("w", Diagonal(), seed),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.parts["b"].log_prob(params) + q.parts["*"].log_prob(params)


class TestDenseAndMeanField(FamilyContract):
    family = PerGroup({"b": GaussianFamily(Dense(), 0.4), "*": MeanFieldFamily()})

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": gaussian("b", Dense(), seed),
            "*": mean_field("w", seed),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.parts["b"].log_prob(params) + log_normal(q.parts["*"], params)

    def test_no_rule_can_move_it(self) -> None:
        assert not self.family.has_mean
        assert self.family.structure is None


class TestTiedAndMeanField(FamilyContract):
    family = PerGroup({"b": MeanFieldFamily(), "*": KTiedFamily(rank=1)})

    def posterior(self, seed: int = 0) -> Product:
        scales = {"w.u": 0.3 * randn(1, 2, seed=41), "w.v": 0.3 * randn(1, 2, seed=42)}
        tied = KTied(moved("w", seed), scales)
        return Product({"b": mean_field("b", seed), "*": tied}, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return log_normal(q, params)


class TestMeanFieldAndValues(FamilyContract):
    family = PerGroup({"b": MeanFieldFamily(), "*": PointEstimate()})
    names = ("b",)

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": mean_field("b", seed),
            "*": PointBelief(moved("w", seed)),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return log_normal(q.parts["b"], params)


class TestMeanFieldAndValuesWithoutPrior(TestMeanFieldAndValues):
    family = PerGroup({"b": MeanFieldFamily(), "*": PointEstimate(with_prior=False)})


class TestDenseAndValues(FamilyContract):
    family = PerGroup({"b": GaussianFamily(Dense(), 0.4), "*": PointEstimate()})
    names = ("b",)

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": gaussian("b", Dense(), seed),
            "*": PointBelief(moved("w", seed)),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.parts["b"].log_prob(params)


class TestKroneckerAndIsotropic(FamilyContract):
    family = PerGroup({"b": GaussianFamily(Isotropic(), 0.4), "*": GaussianFamily(Kronecker())})

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": gaussian("b", Isotropic(), seed),
            "*": gaussian("w", Kronecker(), seed),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.parts["b"].log_prob(params) + q.parts["*"].log_prob(params)


class TestValues(FamilyContract):
    family = PerGroup({"b": PointEstimate(with_prior=False), "*": PointEstimate(with_prior=False)})
    names = ()

    def posterior(self, seed: int = 0) -> Product:
        parts: dict[str, Posterior] = {
            "b": PointBelief(moved("b", seed)),
            "*": PointBelief(moved("w", seed)),
        }
        return Product(parts, GROUPS)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return torch.zeros((), dtype=DTYPE)


# The same as one Gaussian.


def pair() -> tuple[Product, Gaussian]:
    """A product, and the Gaussian over all weights with its precision, (6, 6), "w" before "b"."""
    parts: dict[str, Posterior] = {"b": gaussian("b", Dense()), "*": mean_field("w")}
    q = Product(parts, GROUPS)
    blocks = [dense(gaussian("b", Dense()).precision, {"b": PARAMS["b"]})]
    blocks.insert(0, mean_field("w").precision.diagonal()["w"].reshape(-1).diag())
    shapes = {name: tuple(PARAMS[name].shape) for name in ("w", "b")}
    return q, Gaussian(PARAMS, DenseMatrix(torch.block_diag(*blocks), shapes))


def test_divergences_and_entropy_are_those_of_the_whole() -> None:
    q, whole = pair()
    close(q.kl(1.7), whole.kl(1.7))
    close(q.entropy(), whole.entropy())
    close(flat({k: q.variance()[k] for k in PARAMS}), flat(whole.variance()))
    close(dense(q.precision, PARAMS), dense(whole.precision, PARAMS))


def test_draws_have_the_covariance_of_the_whole() -> None:
    q, whole = pair()
    covariance = torch.linalg.inv(dense(whole.precision, PARAMS))
    source = generator(5)
    for kind in ("sample", "draw"):
        drawn = [getattr(q, kind)(source) for _ in range(3000)]
        params = drawn if kind == "sample" else [point.params for point in drawn]
        centred = torch.stack([flat({k: d[k] for k in PARAMS}) for d in params]) - flat(PARAMS)
        z_close(centred.unsqueeze(2) * centred.unsqueeze(1), covariance)


def test_linearised_outputs_are_those_of_the_whole() -> None:
    q, whole = pair()
    rows = TableRows.random(PARAMS, 3, 4, seed=6)
    close(q.precision.output_covariance(rows), whole.precision.output_covariance(rows))


def learner(family: Family, **options: Any) -> br.Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    parts = {"expectation": br.AtMean(), "curvature": br.GGN(), "rule": br.Natural(0.5, 0.3)}
    likelihood = br.GaussianLikelihood(noise=0.4)
    return br.Learner(net, likelihood, num_data=20, posterior=family, **parts | options)


LAST = "2.weight|2.bias"


def test_it_learns_and_predicts_as_the_gaussian_with_these_blocks() -> None:
    x, y = randn(20, 2, seed=1), randn(20, 2, seed=2)
    product = PerGroup({LAST: GaussianFamily(Dense()), "*": GaussianFamily(Diagonal())})
    blocks = GaussianFamily(Blocks({LAST: Dense(), "*": Diagonal()}))
    found = []
    for family in (product, blocks):
        one = learner(family)
        state = one.init()
        for i in range(3):
            state, info = one.step(state, (x[5 * i : 5 * i + 5], y[5 * i : 5 * i + 5]))
        p = br.predict(one, state, x, how=br.Linearised())
        q = state.posterior
        mean = flat({name: q.mean[name] for name in one.network.params()})
        found.append((mean, p.mean, p.epistemic, info.kl))
    for one_part, other in zip(*found, strict=True):
        close(one_part, other)


def test_weights_that_are_values_stay_where_natural_gradients_move_the_rest() -> None:
    family = PerGroup({"2.*": GaussianFamily(Dense()), "*": PointEstimate()})
    one = learner(family)
    first = one.init()
    state, _ = one.step(first, (randn(5, 2, seed=1), randn(5, 2, seed=2)))
    for name, value in state.posterior.mean.items():
        same = torch.equal(value, first.posterior.mean[name])
        assert same == name.startswith("0."), name


def test_gradient_descent_moves_values_and_spreads_together() -> None:
    family = PerGroup({"2.*": MeanFieldFamily(), "*": PointEstimate()})
    for expectation, curvature in ((br.Draws(2), br.Price()), (br.AtMean(), br.GGN())):
        one = learner(family, expectation=expectation, curvature=curvature, rule=br.Elbo())
        first = one.init()
        before = {k: v.clone() for k, v in first.posterior.state_dict().items()}
        state, info = one.step(first, (randn(5, 2, seed=1), randn(5, 2, seed=2)))
        assert info.elbo.isfinite()
        for name, value in state.posterior.state_dict().items():
            assert not torch.equal(value, before[name]), name


def test_an_earlier_posterior_is_the_prior_of_later_data() -> None:
    """Half the data after the other half is all of it, where the model is linear."""
    x, y = randn(20, 3, seed=1), randn(20, 1, seed=2)
    family = PerGroup({"weight": GaussianFamily(Dense(), 0.0), "bias": PointEstimate()})

    def learned(x: Tensor, y: Tensor, **options: Any) -> Posterior:
        net = nn.Linear(3, 1).double()
        nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
        one = br.Learner(
            net,
            br.GaussianLikelihood(noise=0.3),
            num_data=len(x),
            posterior=family,
            expectation=br.AtMean(),
            curvature=br.GGN(),
            rule=br.Natural(1.0, 1.0),
            **options,
        )
        return one.step(one.init(), (x, y))[0].posterior

    whole = learned(x, y, prior_precision=0.7)
    half = learned(x[:8], y[:8], prior_precision=0.7)
    both = learned(x[8:], y[8:], prior=half)
    close(both.mean["weight"], whole.mean["weight"])
    close(both.variance()["weight"], whole.variance()["weight"])


# Patterns and refusals.


def test_patterns_say_which_weights_share_a_belief() -> None:
    params = {f"{i}.{kind}": randn(2, seed=i) for i in (0, 2) for kind in ("weight", "bias")}
    family = PerGroup(
        {
            "2.weight|0.bias": GaussianFamily(Dense()),
            "*.bias": PointEstimate(),
            "*": MeanFieldFamily(),
        }
    )
    q = family.init(params, weight=1.0, prior=1.0)
    assert q.groups == {
        "2.weight|0.bias": ("0.bias", "2.weight"),
        "*.bias": ("2.bias",),
        "*": ("0.weight",),
    }
    assert isinstance(q.parts["2.weight|0.bias"], Gaussian)
    assert isinstance(q.parts["*.bias"], PointBelief)
    assert isinstance(q.parts["*"], MeanField)
    assert "4 more" not in repr(q)
    assert repr(q).startswith("<Product: ")


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no pattern": ({}, ValueError, "at least one pattern and its family"),
    "no family": ({"*": "dense"}, TypeError, r"got 'dense' for '\*'.*MeanFieldFamily\(\)"),
    "eigenbases": (
        {"*": RotatedFamily(Kronecker())},
        TypeError,
        r"kept in eigenbases.*use GaussianFamily\(Kronecker\(\)\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_product_is_refused_when_it_is_built(case: str) -> None:
    families, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        PerGroup(families)


def test_names_that_fit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"No parameter is named 'x\*'\. There are: w, b"):
        PerGroup({"x*": PointEstimate(), "*": MeanFieldFamily()}).init(
            PARAMS, weight=1.0, prior=1.0
        )
    with pytest.raises(ValueError, match=r"'w' fits no pattern; add one for all others"):
        PerGroup({"b": MeanFieldFamily()}).init(PARAMS, weight=1.0, prior=1.0)


def test_mixtures_that_no_rule_can_move_are_refused() -> None:
    mixed = PerGroup({"2.*": GaussianFamily(Dense()), "*": MeanFieldFamily()})
    none = {"curvature": br.curvature.NoCurvature(), "rule": br.Elbo()}
    with pytest.raises(TypeError, match="ELBO's gradient moves the scales"):
        learner(mixed, **none)
    with pytest.raises(TypeError, match="Natural gradients need a Gaussian"):
        learner(mixed)


def test_positive_factors_in_one_group_are_refused_with_estimates_that_may_be_negative() -> None:
    family = PerGroup({"2.*": GaussianFamily(LowRank(2)), "*": PointEstimate()})
    with pytest.raises(ValueError, match="can only be averaged over positive curvature"):
        learner(
            family,
            expectation=br.Draws(1),
            curvature=br.Price(),
            rule=br.Natural(0.1, 0.1, retract=True),
        )


# What it can do follows from its parts.


def test_abilities_are_those_of_the_parts() -> None:
    known = (
        PointEstimate(),
        MeanFieldFamily(),
        KTiedFamily(),
        GaussianFamily(Diagonal()),
        GaussianFamily(Dense()),
    )
    for a, b in itertools.product(known, known):
        both = PerGroup({"b": a, "*": b})
        for ability in ("independent", "symmetric", "linearisable"):
            wanted = getattr(a, ability) and getattr(b, ability)
            assert getattr(both, ability) == wanted, (ability, a, b)
        for ability in ("spreads", "own_coordinates", "needs_additive"):
            wanted = getattr(a, ability) or getattr(b, ability)
            assert getattr(both, ability) == wanted, (ability, a, b)
        assert (both.structure is None) == (a.structure is None or b.structure is None)
        if a == b:
            assert both.has_mean == a.has_mean
            assert both.has_scales == a.has_scales


def test_its_structure_is_one_of_blocks() -> None:
    family = PerGroup({"b": GaussianFamily(Dense()), "*": PointEstimate()})
    assert family.structure == Blocks({"b": Dense(), "*": Known()})
    found = family.first_curvature(PARAMS, 3.0)
    assert isinstance(found, BlockMatrix)
    assert family.words() == "Dense (some weights)"
    layered = PerGroup({"2.*": GaussianFamily(Kronecker()), "*": PointEstimate()})
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    kept = layered.for_model(net).families["2.*"].structure
    assert isinstance(kept, Kronecker)
    assert kept.layers == (("0.weight", "0.bias"), ("2.weight", "2.bias"))


def test_a_fault_of_a_part_is_one_of_the_whole() -> None:
    good = Product({"b": mean_field("b"), "*": mean_field("w")}, GROUPS)
    assert good.fault() is None
    bad = MeanField({"w": PARAMS["w"]}, {"w": torch.full((2, 2), -40.0, dtype=DTYPE)})
    found = Product({"b": mean_field("b"), "*": bad}, GROUPS).fault()
    assert found is not None
    assert "'w' has collapsed" in found
