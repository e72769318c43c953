"""Mean-field beliefs against torch's own normals, their draws and the diagonal Gaussian."""

from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close, flat, generator, randn
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from bayesrule.matrices import DiagonalMatrix, SubsetMatrix
from bayesrule.posteriors import FanIn, Gaussian, MeanField, MeanFieldFamily
from bayesrule.posteriors.factorised import ScaleKL

SCALES = {"w": 0.3 * randn(2, 2, seed=31) - 0.5, "b": 0.3 * randn(2, seed=32) - 0.5}


class TestMeanField(FamilyContract):
    family = MeanFieldFamily()

    def posterior(self) -> MeanField:
        return MeanField(PARAMS, SCALES)

    def log_prob(self, q: Any, params: Any) -> Tensor:
        return Normal(flat(q.mean), flat(q.std())).log_prob(flat(params)).sum()


class TestMeanFieldWithKnownWeights(FamilyContract):
    family = MeanFieldFamily(known=("w*",))
    names = ("b",)

    def posterior(self) -> MeanField:
        return MeanField(PARAMS, {"b": SCALES["b"]})

    def log_prob(self, q: Any, params: Any) -> Tensor:
        return Normal(q.mean["b"], q.std()["b"]).log_prob(params["b"]).sum()

    def test_known_weights_do_not_move(self) -> None:
        q = self.posterior()
        assert torch.equal(q.sample(generator(1))["w"], PARAMS["w"])
        assert isinstance(q.precision, SubsetMatrix)
        assert q.num_parameters == 6 + 2


@pytest.mark.parametrize("precision", [0.3, 1.0, 7.0])
def test_divergence_and_entropy_are_those_of_normals(precision: float) -> None:
    q = MeanField(PARAMS, SCALES)
    normal = Normal(flat(q.mean), flat(SCALES).exp())
    prior = Normal(torch.zeros(6, dtype=DTYPE), torch.full((6,), precision**-0.5, dtype=DTYPE))
    close(q.kl(precision), kl_divergence(normal, prior).sum(), 1e-12)
    close(q.entropy(), normal.entropy().sum(), 1e-12)
    theta = {name: value - 0.2 for name, value in PARAMS.items()}
    close(q.log_prob(theta), normal.log_prob(flat(theta)).sum(), 1e-12)


def test_it_is_the_gaussian_with_that_diagonal() -> None:
    q = MeanField(PARAMS, SCALES)
    same = Gaussian(PARAMS, DiagonalMatrix({k: (-2.0 * v).exp() for k, v in SCALES.items()}))
    close(q.kl(1.7), same.kl(1.7), 1e-12)
    close(flat(q.variance()), flat(same.variance()), 1e-12)
    close(flat(q.offset(generator(4))), flat(same.offset(generator(4))), 1e-12)


def test_the_divergence_of_many_weights_is_summed_without_rounding() -> None:
    many = {"w": torch.zeros(1 << 20)}
    close(MeanField(many, many).kl(2.0), 2.0**20 * 0.5 * (1.0 - 0.6931471805599453), 1e-6)


def test_the_first_spread_is_a_share_of_the_prior_or_by_fan_in() -> None:
    q = MeanFieldFamily(0.2).init(PARAMS, weight=10.0, prior=4.0)
    close(flat(q.std()), torch.full((6,), 0.1, dtype=DTYPE), 1e-12)
    q = MeanFieldFamily(FanIn(0.5)).init(PARAMS, weight=10.0, prior=4.0)
    close(q.std()["w"], torch.full((2, 2), 0.5 * 2**-0.5, dtype=DTYPE), 1e-12)
    q = MeanFieldFamily(0.2).init(PARAMS, weight=10.0, prior=0.0)
    close(flat(q.std()), torch.full((6,), 0.2, dtype=DTYPE), 1e-12)
    with pytest.raises(ValueError, match="spread must be positive, got 0"):
        MeanFieldFamily(0.0).init(PARAMS, weight=10.0, prior=1.0)


def test_known_names_must_exist_and_leave_some() -> None:
    with pytest.raises(ValueError, match=r"No weight is named 'x\*'.*There are: w, b"):
        MeanFieldFamily(known=("x*",)).init(PARAMS, weight=1.0, prior=1.0)
    with pytest.raises(ValueError, match="All weights are held as known"):
        MeanFieldFamily(known=("w", "b")).init(PARAMS, weight=1.0, prior=1.0)


def test_the_gradient_in_log_std_is_that_in_the_scales() -> None:
    q = MeanField(PARAMS, SCALES)
    slope = {name: value + 1.0 for name, value in PARAMS.items()}
    kept = {name: value.clone() for name, value in slope.items()}
    std = q.std()
    for name, found in q.pull(slope, 0.2, ScaleKL(0.3, 0.7)).items():
        close(found, 0.2 * (kept[name] * std[name] - 0.3 + 0.7 * std[name].square()), 1e-12)
