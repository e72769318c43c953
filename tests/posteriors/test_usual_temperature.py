"""The temperature where nobody says: no belief of a function is less sure than its data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import GGN, AtMean, Dense, Diagonal, GaussianFamily, Kronecker, Learner, Natural
from bayesrule.matrices import BlockTridiagonal
from bayesrule.posteriors import Family, KTiedFamily, MeanFieldFamily
from bayesrule.predicting.predict import Linearised

pytestmark = pytest.mark.usefixtures("double_precision")
NOISE, FEATURES = 0.3, 29
P = FEATURES + 1


def linear(num_data: int, family: Family, **options: Any) -> Learner:
    """A linear model whose precision is the curvature itself after one step."""
    parts: dict[str, Any] = {
        "posterior": family,
        "expectation": AtMean(),
        "curvature": GGN(),
        "rule": Natural(1.0, 1.0),
        "predictive": Linearised(),
        "prior_precision": 1e-6,
    }
    likelihood = br.GaussianLikelihood(noise=NOISE)
    return Learner(nn.Linear(FEATURES, 1), likelihood, num_data=num_data, **parts, **options)


def spread(learner: Learner) -> float:
    """The mean variance of the function at the data, in variances of the noise."""
    x = torch.randn(learner.num_data, FEATURES, generator=torch.Generator().manual_seed(0))
    state, _ = learner.step(learner.init(), (x, x[:, :1]))
    return float(br.predict(learner, state, x).epistemic.mean()) / NOISE**2


@pytest.mark.parametrize("num_data", [6, 15, 30, 100])
def test_a_function_is_at_most_as_uncertain_as_its_data(num_data: int) -> None:
    learner = linear(num_data, GaussianFamily(Diagonal()))
    assert learner.temperature == min(1.0, num_data / P)
    assert spread(learner) == pytest.approx(min(1.0, P / num_data), rel=1e-3)
    assert spread(learner) <= 1.0


def test_at_a_temperature_of_one_it_would_be_more() -> None:
    learner = linear(6, GaussianFamily(Diagonal()), temperature=1.0)
    assert spread(learner) == pytest.approx(P / 6, rel=1e-3)


def test_a_full_covariance_needs_no_other_temperature() -> None:
    learner = linear(6, GaussianFamily(Dense()))
    assert learner.temperature == 1.0
    assert spread(learner) <= 1.0


COUNTING = [
    GaussianFamily(Diagonal()),
    GaussianFamily(Kronecker()),
    GaussianFamily(BlockTridiagonal()),
    MeanFieldFamily(),
    KTiedFamily(2),
]


@pytest.mark.parametrize("family", COUNTING, ids=repr)
def test_of_every_family_that_counts_each_weight(family: Family) -> None:
    params = dict(nn.Linear(FEATURES, 1).named_parameters())
    found = [family.usual_temperature(number, params) for number in (6, 15, 30, 100)]
    assert found == [6 / P, 15 / P, 1.0, 1.0]


def test_what_never_sees_the_spread_has_none() -> None:
    model, likelihood = nn.Linear(FEATURES, 1), br.GaussianLikelihood(noise=NOISE)
    assert br.adam(model, likelihood, num_data=6).temperature == 1.0
    assert br.vogn(model, likelihood, num_data=6).temperature == 6 / P
    assert br.tagi(model, likelihood, num_data=6).temperature == 1.0


def test_functions_of_classes_are_surer() -> None:
    """Draws of the weights may cost an example a fortieth of a nat, not half a nat."""
    model, likelihood = nn.Linear(FEATURES, 2), br.CategoricalLikelihood()
    size = 2 * P
    assert br.vogn(model, likelihood, num_data=6).temperature == pytest.approx(0.05 * 6 / size)
    assert br.vogn(model, likelihood, num_data=100 * size).temperature == 1.0
    assert br.mean_field(model, likelihood, num_data=6).temperature == pytest.approx(0.3 / size)
    # Their spread is not seen in training.
    assert br.laplace(model, likelihood, num_data=6).temperature == 1.0
    assert br.ogn(model, likelihood, num_data=6).temperature == 6 / size
