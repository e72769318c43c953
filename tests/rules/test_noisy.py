"""Noisy natural gradients against their equations, and against the exact posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesrule as br
from bayesrule import (
    GGN,
    AtMean,
    Average,
    Dense,
    Draws,
    Fisher,
    GaussianFamily,
    Kronecker,
    Learner,
    Natural,
)
from bayesrule.curvature import SquaredGradient
from bayesrule.matrices import BlockTridiagonal
from bayesrule.posteriors import Rotated, RotatedFamily
from bayesrule.rules import Velocity
from bayesrule.types import State
from rules import noisy_equations as by_hand
from rules.noisy_equations import (
    GAMMA,
    NOISE,
    NUM_DATA,
    PRIOR,
    TEMPERATURE,
    WEIGHT,
    Equations,
    ToldTargets,
    WatchedDraws,
    flat,
    matrices,
    noisy,
)
from rules.quadratic import moments, regression

FIRST = 1.5  # the curvature of one datum before any is seen

BELIEFS: dict[str, tuple[GaussianFamily, Callable[..., Tensor], Callable[..., Any]]] = {
    "kronecker": (GaussianFamily(Kronecker(), FIRST), by_hand.kronecker, by_hand.factors),
    "exact kronecker": (
        GaussianFamily(Kronecker(exact=True), FIRST), by_hand.exact_kronecker, by_hand.factors,
    ),
    "rotated kronecker": (RotatedFamily(Kronecker(), FIRST), by_hand.kronecker, by_hand.factors),
    "rotated exact kronecker": (
        RotatedFamily(Kronecker(exact=True), FIRST), by_hand.exact_kronecker, by_hand.factors,
    ),
    "tridiagonal": (
        GaussianFamily(BlockTridiagonal(), FIRST), by_hand.tridiagonal, by_hand.factors,
    ),
    "full": (GaussianFamily(Dense(), FIRST), by_hand.dense, by_hand.full),
}  # fmt: skip

RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "average": ({"momentum": Average(0.8)}, {"average": 0.8}),
    "velocity": ({"momentum": Velocity(0.7)}, {"velocity": 0.7}),
    "damping": ({"damping": 0.3, "momentum": Average(0.5)}, {"damping": 0.3, "average": 0.5}),
    "kl clip": (
        {"kl_clip": 1e-3, "momentum": Velocity(0.5), "damping": 0.1},
        {"clip": 1e-3, "velocity": 0.5, "damping": 0.1},
    ),
    "kl clip of an average": (
        {"kl_clip": 1e-3, "momentum": Average(0.5)},
        {"clip": 1e-3, "average": 0.5},
    ),
    "intervals": (
        {"stats_every": 2, "inverse_every": 3, "momentum": Average(0.8), "damping": 0.2},
        {"stats": 2, "inverse": 3, "average": 0.8, "damping": 0.2},
    ),
    "prior at the mean": ({"prior_at_draws": False}, {"prior_at_draws": False}),
}


def close(got: Tensor, want: Tensor, tolerance: float = 1e-9) -> None:
    """Equal up to rounding in float64."""
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def covariance(state: State) -> Tensor:
    """`Σ` over both layers, column by column, from what the belief's precision does to vectors."""
    belief = state.posterior
    assert isinstance(belief, br.posteriors.Gaussian | Rotated)
    columns = []
    for i in range(17):
        unit = torch.zeros(17)
        unit[i] = 1.0
        first, second = by_hand.unflat(unit)
        named = {"0.weight": first[:, :-1], "0.bias": first[:, -1]}
        named |= {"2.weight": second[:, :-1], "2.bias": second[:, -1]}
        columns.append(flat(matrices(belief.precision.solve(named))))
    return torch.stack(columns)


def learner_of(family: GaussianFamily, rule: Natural, draws: int = 2) -> tuple[Learner, Any, Any]:
    """The net of two layers, with what it draws kept."""
    expectation, likelihood = WatchedDraws(draws), ToldTargets(noise=NOISE)
    learner = Learner(
        by_hand.model(),
        likelihood,
        num_data=NUM_DATA,
        posterior=family,
        expectation=expectation,
        curvature=Fisher(),
        rule=rule,
        prior_precision=PRIOR,
        temperature=TEMPERATURE,
    )
    return learner, expectation, likelihood


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("belief", BELIEFS)
def test_steps_are_those_of_the_equations(belief: str, rule: str) -> None:
    (family, damp, look), (options, told) = BELIEFS[belief], RULES[rule]
    learner, draws, likelihood = learner_of(family, noisy(0.3, 0.4, **options))
    state = learner.init(seed=1)
    first = {"F": FIRST * torch.eye(17)} if belief == "full" else by_hand.first_factors(FIRST)
    start = flat(matrices(state.posterior.mean))
    wanted = Equations(start, first, damp, look, alpha=0.3, beta=0.4, **told)
    for _ in range(7):
        x, y = torch.randn(5, 2), torch.randn(5, 2)
        after, _ = learner.step(state, (x, y))
        wanted.advance(draws.weights(), x, y, likelihood.targets())
        state = after
        close(flat(matrices(state.posterior.mean)), wanted.mean)
        close(covariance(state), torch.linalg.inv(WEIGHT * wanted.precision))


def test_corrected_factors_take_the_curvature_in_their_own_bases() -> None:
    rate = 0.4
    family = RotatedFamily(Kronecker(corrected=True), FIRST)
    learner, draws, likelihood = learner_of(family, noisy(0.3, rate), draws=1)
    state = learner.init()
    x, y = torch.randn(5, 2), torch.randn(5, 2)
    after, _ = learner.step(state, (x, y))
    weights, targets = draws.weights(), likelihood.targets()
    inputs, slopes = by_hand.passes(weights[0], x, targets[0])
    blocks = []
    for a, g in zip(inputs, slopes, strict=True):
        # The diagonal of this batch's curvature in the bases of its own factors ...
        own = [torch.linalg.eigh(part.mT @ part)[1] for part in (g, a)]
        rows = (g @ own[0]).unsqueeze(2) * (a @ own[1]).unsqueeze(1)
        scales = rows.square().mean(0)
        # ... seen in those of the averages; the identity looks the same in all.
        output = (1 - rate) * FIRST * torch.eye(g.shape[1]) + rate * g.mT @ g / 5
        wide = (1 - rate) * torch.eye(a.shape[1]) + rate * a.mT @ a / 5
        left, right = (torch.linalg.eigh(part)[1] for part in (output, wide))
        seen = (left.mT @ own[0]).square() @ scales @ (right.mT @ own[1]).square().mT
        values = (1 - rate) * FIRST + rate * seen + GAMMA
        basis = torch.kron(right, left)
        blocks.append(basis @ torch.diag(values.mT.reshape(-1)) @ basis.mT)
    precision = torch.block_diag(*blocks)
    close(covariance(after), torch.linalg.inv(WEIGHT * precision))
    v = flat(by_hand.gradients(weights, x, y))
    want = flat(matrices(state.posterior.mean)) - 0.3 * torch.linalg.solve(precision, v)
    close(flat(matrices(after.posterior.mean)), want)


@pytest.mark.parametrize("damped_root", [False, True])
@pytest.mark.parametrize(("draws", "of_sums"), [(1, False), (3, False), (2, True)])
def test_noisy_adam_is_algorithm_one(draws: int, of_sums: bool, damped_root: bool) -> None:
    alpha, beta1, beta2 = 0.02, 0.8, 0.9
    learner = br.noisy_adam(
        by_hand.model(),
        br.GaussianLikelihood(noise=NOISE),
        num_data=NUM_DATA,
        prior_precision=PRIOR,
        temperature=TEMPERATURE,
        learning_rate=alpha,
        momentum=beta1,
        rate=1.0 - beta2,
        initial_curvature=FIRST,
        damped_root=damped_root,
        curvature=None if of_sums else SquaredGradient(),
    )
    learner.expectation = watched = WatchedDraws(draws)
    state = learner.init()
    mean, m, f = flat(matrices(state.posterior.mean)), torch.zeros(17), FIRST * torch.ones(17)
    for k in range(1, 8):
        close(flat(matrices(state.posterior.variance())), 1.0 / (WEIGHT * (f + GAMMA)))
        x, y = torch.randn(5, 2), torch.randn(5, 2)
        after, _ = learner.step(state, (x, y))
        weights = watched.weights()
        v = flat(by_hand.gradients(weights, x, y))
        g = flat(by_hand.gradients(weights, x, y, prior=False))
        squares = g.square() * (5 if of_sums else 1)
        m, f = beta1 * m + (1 - beta1) * v, beta2 * f + (1 - beta2) * squares
        divisor = (f + GAMMA).sqrt() if damped_root else f.sqrt() + GAMMA
        mean = mean - alpha * m / (1 - beta1**k) / divisor
        state = after
        close(flat(matrices(state.posterior.mean)), mean)


# --- where the posterior is known -----------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_noisy_full_is_exact_for_linear_regression(temperature: float) -> None:
    task = regression(temperature=temperature)
    learner = br.noisy_full(
        task.model(),
        task.likelihood,
        num_data=20,
        learning_rate=1.0,
        rate=1.0,
        momentum=None,
        kl_clip=math.inf,
        curvature=GGN(),
        prior_precision=task.prior,
        temperature=temperature,
    )
    # Pairs m ± δ see the gradient at the mean: it is linear in the weights.
    learner.expectation = Draws(2, antithetic=True)
    state, _ = learner.step(learner.init(), task.batch)
    mean, precision = moments(state)
    close(mean, task.mean, 1e-10)
    close(torch.linalg.inv(precision), torch.linalg.inv(task.precision), 1e-10)


def test_a_draw_shifts_the_mean_by_minus_itself() -> None:
    task = regression()
    learner = br.noisy_full(
        task.model(),
        task.likelihood,
        num_data=20,
        learning_rate=1.0,
        rate=1.0,
        momentum=None,
        kl_clip=math.inf,
        curvature=GGN(),
        prior_precision=task.prior,
    )
    learner.expectation = watched = WatchedDraws(1)
    before = learner.init()
    after, _ = learner.step(before, task.batch)
    drawn = watched.kept[0]["weight"] - before.posterior.mean["weight"]
    close(moments(after)[0], task.mean - drawn.flatten(), 1e-10)


@pytest.mark.parametrize("inverse_every", [1, 2])
def test_noisy_kfac_is_exact_for_one_output(inverse_every: int) -> None:
    """With one output the curvature is `A ⊗ S` with a number S; damping that is exact, too."""
    task = regression()
    belief = Kronecker(exact=True), 1.0
    learner = Learner(
        task.model(),
        task.likelihood,
        num_data=20,
        posterior=RotatedFamily(*belief) if inverse_every > 1 else GaussianFamily(*belief),
        expectation=Draws(2, antithetic=True),
        curvature=GGN(),
        rule=noisy(1.0, 1.0, inverse_every=inverse_every),
        prior_precision=task.prior,
    )
    state, _ = learner.step(learner.init(), task.batch)
    close(state.posterior.mean["weight"].flatten(), task.mean, 1e-10)
    variance = torch.linalg.inv(task.precision).diagonal()
    close(state.posterior.variance()["weight"].flatten(), variance, 1e-10)


def test_at_the_mean_no_draws_are_needed() -> None:
    """The same rule without noise: K-FAC with a prior."""
    task = regression()
    learner = Learner(
        task.model(),
        task.likelihood,
        num_data=20,
        posterior=RotatedFamily(Kronecker(exact=True)),
        expectation=AtMean(),
        curvature=GGN(),
        rule=noisy(1.0, 1.0),
        prior_precision=task.prior,
    )
    state, _ = learner.step(learner.init(), task.batch)
    close(state.posterior.mean["weight"].flatten(), task.mean, 1e-10)
