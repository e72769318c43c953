"""Mean-field beliefs against torch's own normals, their draws and the diagonal Gaussian."""

from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close, flat, generator, randn
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import FanIn, Gaussian, MeanField, MeanFieldFamily
from bayesrule.posteriors.factorised import ScaleKL

SCALES = {"w": 0.3 * randn(2, 2, seed=31) - 0.5, "b": 0.3 * randn(2, seed=32) - 0.5}


class TestMeanField(FamilyContract):
    family = MeanFieldFamily()

    def posterior(self, seed: int = 0) -> MeanField:
        mean = {name: value + 0.5 * seed for name, value in PARAMS.items()}
        return MeanField(mean, {name: value + 0.3 * seed for name, value in SCALES.items()})

    def log_prob(self, q: Any, params: Any) -> Tensor:
        return Normal(flat(q.mean), flat(q.std())).log_prob(flat(params)).sum()


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


def test_the_gradient_in_log_std_is_that_in_the_scales() -> None:
    q = MeanField(PARAMS, SCALES)
    slope = {name: value + 1.0 for name, value in PARAMS.items()}
    kept = {name: value.clone() for name, value in slope.items()}
    std = q.std()
    for name, found in q.scale_gradients(slope, 0.2, ScaleKL(0.3, 0.7)).items():
        close(found, 0.2 * (kept[name] * std[name] - 0.3 + 0.7 * std[name].square()), 1e-12)
