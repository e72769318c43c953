"""The best diagonal belief on a quadratic, in closed form, is where diagonal learners end."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesrule as br
from bayesrule import GGN, AtMean, Diagonal, Draws, Fisher, GaussianFamily, Learner, Natural, Price
from bayesrule.schedules import cosine
from rules.quadratic import Regression, moments, regression


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


def _mild() -> Regression:
    """Inputs that have little to do with each other, so that no direction is slow."""
    x = torch.randn(20, 3)
    return Regression(x, x.sum(1) + torch.randn(20))


def _squares_of_examples(task: Regression, mean: Tensor, variance: Tensor) -> Tensor:
    """`Σ_i E[g_i²]`, g_i the gradient of example i: `x_ij² E[(x_i θ − y_i)²] / σ⁴`."""
    error = (task.x @ mean - task.y).square() + task.x.square() @ variance
    return task.x.square().mT @ error / task.noise**4


def _square_of_the_sum(task: Regression, mean: Tensor, variance: Tensor) -> Tensor:
    """`E[(Σ_i g_i)²]`, of which a batch of all examples sees one."""
    gradient = task.curvature @ mean - task.first
    return gradient.square() + task.curvature.square() @ variance


def _hessian(task: Regression, mean: Tensor, variance: Tensor) -> Tensor:
    return task.curvature.diagonal()


def _fixed_point(task: Regression, estimate: Callable[..., Tensor], spread: bool) -> Tensor:
    """The precision s with `s = E_q[estimate] + δ` at `q = N(m*, 1/s)`, or at m* alone."""
    precision = task.precision.diagonal()
    for _ in range(500):
        variance = spread / precision
        precision = 0.5 * (precision + estimate(task, task.mean, variance) + task.prior)
    return precision


# The average over steps forgets the first ones, at which the mean was far away.
RATE = {"rate": lambda t: 4.0 / (8.0 + t), "kl_clip": torch.inf}
METHODS: dict[str, tuple[Callable[..., Learner], dict[str, Any], Callable[..., Tensor]]] = {
    "vogn": (
        br.vogn,
        {"draws": 4, "learning_rate": cosine(0.3, 800), **RATE},
        _squares_of_examples,
    ),
    # Its mean is divided by a root, so that its rate is that of an optimiser; one draw, because
    # the square is taken of the mean gradient of all draws.
    "vadam": (
        br.noisy_adam,
        {"learning_rate": cosine(0.05, 800), "rate": RATE["rate"]},
        _square_of_the_sum,
    ),
    "ivon": (br.ivon, {"draws": 8, "learning_rate": cosine(0.3, 800), **RATE}, _hessian),
}


@pytest.mark.parametrize(("method", "options", "estimate"), METHODS.values(), ids=METHODS)
def test_named_methods_end_at_their_fixed_points(
    method: Callable[..., Learner], options: dict[str, Any], estimate: Callable[..., Tensor]
) -> None:
    task = _mild()
    given = {"num_data": 20, "prior_precision": task.prior, **options}
    learner = method(task.model(), task.likelihood, **given)
    state = learner.init()
    for _ in range(800):
        state, _ = learner.step(state, task.batch, donate=True)
    mean, precision = moments(state)
    want = _fixed_point(task, estimate, spread=True)
    # A fifth of a standard deviation in the mean, a tenth in the precision.
    assert ((mean - task.mean) * want.sqrt()).abs().max() < 0.2
    torch.testing.assert_close(precision, want, rtol=0.1, atol=0.0)


def test_without_draws_the_fixed_point_is_reached_exactly() -> None:
    """OGN: squares of single examples at the mean, which is that of ridge regression."""
    task = _mild()
    given = {"num_data": 20, "prior_precision": task.prior, "kl_clip": torch.inf}
    learner = br.ogn(task.model(), task.likelihood, learning_rate=0.1, rate=0.1, **given)
    state = learner.init()
    for _ in range(800):
        state, _ = learner.step(state, task.batch, donate=True)
    mean, precision = moments(state)
    torch.testing.assert_close(mean, task.mean, rtol=1e-8, atol=1e-8)
    want = _fixed_point(task, _squares_of_examples, spread=False)
    torch.testing.assert_close(precision, want, rtol=1e-8, atol=1e-8)
