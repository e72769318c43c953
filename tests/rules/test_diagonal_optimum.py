"""The best diagonal belief on a quadratic, in closed form, is where diagonal learners end."""

from typing import Any

import pytest
import torch

import bayesrule as br
from bayesrule import GGN, AtMean, Diagonal, Draws, Fisher, GaussianFamily, Learner, Natural, Price
from rules.quadratic import moments, regression


def _diagonal_learner(
    expectation: br.expectations.Expectation, curvature: br.curvature.Curvature, rule: Natural
) -> Any:
    task = regression()
    learner = Learner(
        task.model(),
        task.likelihood,
        num_data=20,
        posterior=GaussianFamily(Diagonal()),
        expectation=expectation,
        curvature=curvature,
        rule=rule,
        prior_precision=task.prior,
    )
    return task, learner


@pytest.mark.parametrize(
    "expectation", [AtMean(), Draws(2, antithetic=True)], ids=["online", "variational online"]
)
def test_the_diagonal_optimum_is_reached_exactly(expectation: br.expectations.Expectation) -> None:
    # On a quadratic the noise of antithetic draws cancels, so both meet the optimum to rounding.
    task, learner = _diagonal_learner(expectation, GGN(), Natural(0.3, 0.2))
    state = learner.init()
    for _ in range(400):
        state, _ = learner.step(state, task.batch)
    mean, precision = moments(state)
    torch.testing.assert_close(mean, task.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(precision, task.precision.diagonal(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("expectation", "curvature", "retract"),
    [(Draws(1), GGN(), False), (Draws(2), Fisher(2), False), (Draws(8, True), Price(), True)],
    ids=["variational online", "sampled Fisher", "ivon"],
)
def test_the_diagonal_optimum_is_reached_with_decaying_rates(
    expectation: br.expectations.Expectation, curvature: br.curvature.Curvature, retract: bool
) -> None:
    rule = Natural(lambda t: 0.3 / (1.0 + 0.05 * t), lambda t: 1.0 / (2.0 + t), retract=retract)
    task, learner = _diagonal_learner(expectation, curvature, rule)
    state = learner.init()
    for _ in range(500):
        state, _ = learner.step(state, task.batch)
    mean, precision = moments(state)
    want = task.precision.diagonal()
    # A tenth of a standard deviation in the mean, a twentieth in the precision.
    assert ((mean - task.mean) * want.sqrt()).abs().max() < 0.1
    torch.testing.assert_close(precision, want, rtol=0.05, atol=0.0)
    # The mean field is narrower than the marginals: it is not the exact posterior that is met.
    assert (want > 1.2 / torch.linalg.inv(task.precision).diagonal()).all()
