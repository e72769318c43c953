"""The natural-gradient rule where everything is known: linear and logistic regression."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn
from torch.nn import functional

import bayesrule as br
from bayesrule import (
    GGN,
    AtMean,
    BernoulliLikelihood,
    Dense,
    Diagonal,
    Draws,
    GaussianFamily,
    Hessian,
    Learner,
    Natural,
    PerExample,
    PerGroup,
    PointEstimate,
    Price,
)
from bayesrule.curvature import NoCurvature
from bayesrule.matrices import Structure
from bayesrule.rules import HeavyBall
from bayesrule.schedules import linear
from rules.quadratic import moments, regression

EXACT: list[Callable[..., Learner]] = [br.ridge, br.newton]


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("start", [0.0, 1.0, 100.0])
def test_one_step_from_anywhere_is_the_exact_posterior(
    method: Callable[..., Learner], start: float, temperature: float
) -> None:
    task = regression(temperature=temperature)
    model = task.model()
    nn.init.normal_(model.weight, std=start)  # type: ignore[arg-type]
    learner = method(
        model, task.likelihood, num_data=20, prior_precision=task.prior, temperature=temperature
    )
    state, _ = learner.step(learner.init(), task.batch)
    mean, precision = moments(state)
    torch.testing.assert_close(mean, task.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(precision, task.precision, rtol=1e-10, atol=1e-10)


def test_ridge_equals_scikit_learn() -> None:
    task = regression(num=40)
    reference = BayesianRidge(fit_intercept=False).fit(task.x.numpy(), task.y.numpy())
    likelihood = br.GaussianLikelihood(noise=reference.alpha_**-0.5)
    learner = br.ridge(
        task.model(), likelihood, num_data=40, prior_precision=float(reference.lambda_)
    )
    state, _ = learner.step(learner.init(), task.batch)
    mean, precision = moments(state)
    torch.testing.assert_close(mean, torch.tensor(reference.coef_), rtol=1e-9, atol=1e-9)
    covariance = torch.tensor(reference.sigma_)
    torch.testing.assert_close(torch.linalg.inv(precision), covariance, rtol=1e-9, atol=1e-9)


def test_a_batch_stands_for_the_whole_data_set() -> None:
    task = regression(num=10)
    learner = br.ridge(task.model(), task.likelihood, num_data=30, prior_precision=task.prior)
    _, precision = moments(learner.step(learner.init(), task.batch)[0])
    want = 3.0 * task.curvature + task.prior * torch.eye(3)
    torch.testing.assert_close(precision, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_natural_parameters_approach_the_posterior_geometrically(rate: float) -> None:
    task = regression()
    learner = br.ridge(
        task.model(),
        task.likelihood,
        num_data=20,
        prior_precision=task.prior,
        rate=rate,
        learning_rate=rate,
    )
    state = learner.init()
    mean, precision = moments(state)
    first_gap, second_gap = precision @ mean - task.first, precision - task.precision
    for step in range(1, 9):
        state, _ = learner.step(state, task.batch)
        mean, precision = moments(state)
        left = (1.0 - rate) ** step
        torch.testing.assert_close(precision @ mean, task.first + left * first_gap)
        torch.testing.assert_close(precision, task.precision + left * second_gap)


def _logistic(
    structure: Structure, rule: Natural, curvature: br.curvature.Curvature | None = None
) -> tuple[Learner, Tensor, Tensor]:
    x = torch.randn(12, 3)
    y = (x[:, 0] + 0.5 * torch.randn(12) > 0).double()
    learner = Learner(
        nn.Linear(3, 1, bias=False),
        BernoulliLikelihood(),
        num_data=12,
        posterior=GaussianFamily(structure, 0.5),
        expectation=AtMean(),
        curvature=curvature or GGN(),
        rule=rule,
        prior_precision=0.8,
    )
    return learner, x, y


def _logistic_derivatives(x: Tensor, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.sigmoid(x @ mean)
    return x.mT @ (p - y), x.mT @ ((p * (1.0 - p))[:, None] * x)


@pytest.mark.parametrize("structure", [Dense(), Diagonal()], ids=repr)
def test_heavy_ball_rolls_in_natural_parameters(structure: Structure) -> None:
    rate, decay = 0.2, 0.6
    learner, x, y = _logistic(structure, Natural(rate, rate, HeavyBall(decay)))
    state = learner.init()

    def natural(mean: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        full = precision if precision.ndim == 2 else torch.diag(precision)
        return full @ mean, full

    before = natural(*moments(state))
    for _ in range(6):
        mean, _ = moments(state)
        now = natural(*moments(state))
        gradient, hessian = _logistic_derivatives(x, y, mean)
        kept = hessian if isinstance(structure, Dense) else torch.diag(hessian.diagonal())
        target = kept @ mean - gradient, kept + 0.8 * torch.eye(3)
        want = [
            a + rate * (t - a) + decay * (a - b)
            for a, b, t in zip(now, before, target, strict=True)
        ]
        before = now
        state, _ = learner.step(state, (x, y[:, None]))
        got = natural(*moments(state))
        torch.testing.assert_close(got[0], want[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got[1], want[1], rtol=1e-10, atol=1e-10)


def test_newton_finds_the_mode_of_a_logistic_regression() -> None:
    learner, x, y = _logistic(Dense(), Natural(1.0, 1.0), Hessian())
    state = learner.init()
    for _ in range(12):
        state, _ = learner.step(state, (x, y[:, None]))
    mean, precision = moments(state)
    gradient, hessian = _logistic_derivatives(x, y, mean)
    assert (gradient + 0.8 * mean).abs().max() < 1e-10
    torch.testing.assert_close(precision, hessian + 0.8 * torch.eye(3), rtol=1e-10, atol=1e-10)


def test_newton_and_gradient_descent_end_where_scipy_does() -> None:
    """The delta method: both are the rule at the mean, with and without a covariance that moves."""
    torch.manual_seed(3)
    _, x, y = _logistic(Dense(), Natural(1.0, 1.0))

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.as_tensor(w)
        loss = functional.binary_cross_entropy_with_logits(x @ at, y, reduction="sum")
        slope = _logistic_derivatives(x, y, at)[0] + 0.8 * at
        return float(loss + 0.4 * at.square().sum()), slope.numpy()

    def bend(w: np.ndarray) -> np.ndarray:
        return (_logistic_derivatives(x, y, torch.as_tensor(w))[1] + 0.8 * torch.eye(3)).numpy()

    options = {"gtol": 1e-12}
    theirs = minimize(
        objective, np.zeros(3), jac=True, hess=bend, method="trust-exact", options=options
    )
    given = {"num_data": 12, "prior_precision": 0.8}
    for method, more, steps in (
        (br.newton, {}, 15),
        (br.sgd, {"learning_rate": 0.5, "momentum": 0.0}, 600),
    ):
        learner = method(nn.Linear(3, 1, bias=False), BernoulliLikelihood(), **given, **more)
        state = learner.init()
        for _ in range(steps):
            state, _ = learner.step(state, (x, y[:, None]))
        mean = state.posterior.mean["weight"].flatten()
        torch.testing.assert_close(mean, torch.as_tensor(theirs.x), rtol=1e-7, atol=1e-8)
        if method is br.newton:
            covariance = torch.linalg.inv(moments(state)[1])
            wanted = torch.linalg.inv(torch.as_tensor(bend(theirs.x)))
            torch.testing.assert_close(covariance, wanted, rtol=1e-6, atol=1e-8)


def _moved(
    rule: Natural, curvature: br.curvature.Curvature | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and precision before and after one step of a logistic regression."""
    torch.manual_seed(2)
    learner, x, y = _logistic(Diagonal(), rule, curvature)
    start = learner.init()
    return *moments(start), *moments(learner.step(start, (x, y[:, None]))[0])


def test_damping_shortens_the_step_but_not_the_belief() -> None:
    mean, _, plain, precision = _moved(Natural(0.3, 0.5))
    _, _, damped, same = _moved(Natural(0.3, 0.5, damping=2.0))
    torch.testing.assert_close(same, precision)
    # 12 data, so 2.0 of F/N is 24 of S.
    want = mean + (plain - mean) * precision / (precision + 24.0)
    torch.testing.assert_close(damped, want)


def test_clip_bounds_every_entry_of_the_direction() -> None:
    mean, _, plain, precision = _moved(Natural(0.3, 0.5))
    direction = (plain - mean) / 0.3
    bound = float(direction.abs().sort().values[1])
    _, _, clipped, same = _moved(Natural(0.3, 0.5, clip=bound))
    torch.testing.assert_close(clipped, mean + 0.3 * direction.clamp(-bound, bound))
    torch.testing.assert_close(same, precision)
    assert not torch.allclose(clipped, plain)


def test_fixed_precision_moves_the_mean_alone() -> None:
    rule = Natural(0.3, 0.5, fixed_precision=True)
    mean, precision, moved, same = _moved(rule, NoCurvature())
    assert torch.equal(same, precision)
    assert not torch.equal(moved, mean)


@pytest.mark.parametrize("name", ["learning_rate", "rate"])
def test_schedules_are_applied(name: str) -> None:
    rates = linear(0.4, 0.1, steps=3)
    constant: dict[str, Any] = {"learning_rate": 0.2, "rate": 0.2}
    torch.manual_seed(2)
    learner, x, y = _logistic(Diagonal(), Natural(**{**constant, name: rates}))
    state = learner.init()
    for step in range(5):
        torch.manual_seed(2)
        now = Natural(**{**constant, name: rates(step)})
        reference, _, _ = _logistic(Diagonal(), now)
        want, _ = reference.step(state, (x, y[:, None]))
        state, _ = learner.step(state, (x, y[:, None]))
        for got, expected in zip(moments(state), moments(want), strict=True):
            torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)


def test_average_momentum_is_without_bias() -> None:
    learner, x, y = _logistic(Diagonal(), Natural(0.0, 0.0, br.Average(0.9)))
    state = learner.init()
    for _ in range(3):
        state, _ = learner.step(state, (x, y[:, None]))
    gradient, _ = _logistic_derivatives(x, y, moments(state)[0])
    average = state.rule["momentum"]["weight"].flatten() / (1.0 - 0.9**3)
    torch.testing.assert_close(average, gradient)


def test_root_steps_are_bounded_by_the_prior() -> None:
    alpha, rho, decay, prior, num = 0.1, 0.2, 0.7, 0.8, 12
    rule = Natural(alpha, rho, br.Average(decay), square_root=True, debias=True)
    learner, x, y = _logistic(Diagonal(), rule, br.curvature.SquaredGradient())
    state = learner.init()
    mean, _ = moments(state)
    first, second = torch.zeros(3), torch.zeros(3)
    for step in range(1, 6):
        state, _ = learner.step(state, (x, y[:, None]))
        gradient = _logistic_derivatives(x, y, mean)[0] / num
        first = decay * first + (1.0 - decay) * gradient
        second = (1.0 - rho) * second + rho * gradient.square()
        slope = first / (1.0 - decay**step) + prior * mean / num
        unbiased = second / (1.0 - (1.0 - rho) ** step)
        mean = mean - alpha * slope / (unbiased.sqrt() + prior / num + 1e-8)
        torch.testing.assert_close(moments(state)[0], mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moments(state)[1], num * unbiased + prior)


def _low_rank_of_a_part() -> PerGroup:
    return PerGroup({"weight": GaussianFamily(br.LowRank(2)), "*": PointEstimate()})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("draws", {"curvature": Price(), "rule": Natural(retract=True)}, r"Price\(\) needs weight dr"),
    (
        "nothing to move towards",
        {"rule": Natural(fixed_precision=True)},
        r"stays as it is, so PerExample\(\) would be computed for nothing; use NoCurvature\(\)",
    ),
    (
        "negative in a part",
        {
            "posterior": PerGroup({"weight": GaussianFamily(), "*": PointEstimate()}),
            "curvature": Hessian(),
        },
        r"Hessian\(\) may be negative; use Natural\(retract=True\)",
    ),
    ("nothing to move", {"curvature": NoCurvature()}, r"NoCurvature\(\) gives nothing.*fixed_prec"),
    (
        "nothing to take a root of",
        {"curvature": NoCurvature(), "rule": Natural(square_root=True, fixed_precision=True)},
        "gives nothing to move",
    ),
    (
        "negative",
        {"curvature": Price(), "expectation": Draws()},
        r"Price\(\) may be negative; use Natural\(retract=True\)",
    ),
    (
        "negative, unseen by a diagonal",
        {"curvature": Hessian()},
        r"Hessian\(\) may be negative; use Natural\(retract=True\)",
    ),
    (
        "root of a negative",
        {"curvature": Hessian(), "rule": Natural(square_root=True, retract=True)},
        r"Hessian\(\) may be negative and then has no square root",
    ),
    (
        "price in low rank",
        {
            "posterior": GaussianFamily(br.LowRank(2)),
            "curvature": Price(),
            "expectation": Draws(),
            "rule": Natural(retract=True),
        },
        r"LowRank\(\) can only be averaged over positive curvature",
    ),
    (
        "heavy ball in low rank of a part",
        {
            "posterior": _low_rank_of_a_part(),
            "rule": Natural(momentum=HeavyBall()),
        },
        r"Average\(\) instead of HeavyBall\(\)",
    ),
]


@pytest.mark.parametrize(("name", "parts", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_parts_that_do_not_fit_are_refused(name: str, parts: dict[str, Any], message: str) -> None:
    chosen: dict[str, Any] = {
        "posterior": GaussianFamily(Diagonal()),
        "expectation": AtMean(),
        "curvature": PerExample(),
        "rule": Natural(),
        **parts,
    }
    with pytest.raises(ValueError, match=message):
        Learner(nn.Linear(3, 1), BernoulliLikelihood(), num_data=12, **chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be a number that is not negative, got -1"),
        ({"rate": math.nan}, "rate must be a number that is not negative, got nan"),
        ({"damping": -0.1}, "(damping|epsilon) must not be negative"),
        ({"epsilon": -1e-8}, "(damping|epsilon) must not be negative"),
        ({"clip": 0.0}, "clip must be positive, got 0.0"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Natural(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("momentum", [br.Average, HeavyBall])
@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_momentum_has_a_decay_below_one(momentum: Callable[[float], object], decay: float) -> None:
    with pytest.raises(ValueError, match=rf"decay lies in \[0, 1\), got {decay}"):
        momentum(decay)
