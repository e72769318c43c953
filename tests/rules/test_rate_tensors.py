"""Rates as 0-d tensors, as replayed steps have them, give the steps that numbers give."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from exact import mlp, randn
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import bayesrule as br
from bayesrule import GaussianLikelihood, Learner
from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import EarlierPosterior, Gaussian, GaussianPrior
from bayesrule.posteriors.rotated import FactoredFamily
from bayesrule.rules import NaturalRates, Now
from bayesrule.schedules import linear
from bayesrule.tensors import tree
from bayesrule.types import Derivatives, State

STEPS = 6
CPU = torch.device("cpu")
RATES: dict[str, Any] = {"learning_rate": linear(0.05, 0.01, 4)}
METHODS: dict[str, dict[str, Any]] = {
    "vogn": RATES,
    "ogn": RATES,
    "ivon": RATES,
    "adam": RATES,
    "rmsprop": RATES,
    "noisy_adam": RATES,
    "noisy_kfac": RATES | {"inverse_every": 1},
}


def _learner(name: str, **options: Any) -> Learner:
    chosen = {**METHODS[name], **options}
    method = br.methods.METHODS[name]
    return method(mlp(2, 3, 1), GaussianLikelihood(noise=0.5), num_data=24, **chosen)


def _batch(step: int) -> tuple[Tensor, Tensor]:
    return randn(6, 2, seed=step), randn(6, 1, seed=100 + step)


def _run(learner: Learner) -> State:
    state = learner.init(seed=3)
    for step in range(STEPS):
        state, _ = learner.step(state, _batch(step))
    return state


def _run_with_tensors(learner: Learner) -> State:
    """The same steps, all with the tensors of the first one, filled anew each time."""
    state, rates = learner.begun(learner.init(seed=3), _batch(0)), learner.rule.rate_tensors(0, CPU)
    assert any(isinstance(rate, Tensor) for rate in rates)
    for step in range(STEPS):
        learner.rule.refill(rates, step)
        problem = dataclasses.replace(learner.problem(state, _batch(step)), rates=rates)
        state, _ = learner.advance(state, problem)
    return state


def _assert_same(learner: Learner) -> None:
    numbers, tensors = _run(learner), _run_with_tensors(learner)
    wanted = dict(tree.leaves(numbers))
    moved = dict(tree.leaves(learner.init(seed=3)))["posterior/mean/0.weight"]
    assert not torch.allclose(wanted["posterior/mean/0.weight"], moved)  # type: ignore[arg-type]
    found = dict(tree.leaves(tensors))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_the_same_steps(name: str) -> None:
    _assert_same(_learner(name))


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a rate that changes": ("vogn", {"rate": linear(0.5, 0.1, 4)}),
    "a clipped step": ("ivon", {"clip": 0.01}),
    "a damped root": ("noisy_adam", {"damped_root": True}),
    "velocity": ("noisy_kfac", {"momentum": br.rules.Velocity(0.5), "kl_clip": 1e-3}),
    "damping": ("noisy_kfac", {"damping": 0.1, "kl_clip": 1e-3}),
    "kept inverses": ("noisy_kfac", {"stats_every": 2, "inverse_every": 3}),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_take_the_same_steps(case: str) -> None:
    name, options = OPTIONS[case]
    learner = _learner(name, **options)
    if isinstance(learner.family.structure, br.Kronecker):
        # Factors, not eigenbases: only these are replayed.
        learner.family = FactoredFamily(learner.family.structure, 1.0)
    _assert_same(learner)


@pytest.mark.parametrize("name", ["vogn", "ivon", "noisy_adam", "mean_field"])
def test_an_earlier_posterior_takes_the_same_steps(name: str) -> None:
    options = METHODS.get(name, RATES)
    method = br.methods.METHODS[name]
    first = method(mlp(2, 3, 1), GaussianLikelihood(noise=0.5), num_data=24, **options)
    earlier = _run(first).posterior
    learner = method(
        mlp(2, 3, 1), GaussianLikelihood(noise=0.5), num_data=24, prior=earlier, **options
    )
    assert isinstance(learner.prior, EarlierPosterior)
    _assert_same(learner)


def test_rates_that_stay_the_same_are_numbers() -> None:
    plain = br.Natural(0.1, 0.2)
    assert plain.rate_tensors(0, CPU) == plain.rates(0)
    average = br.Natural(0.1, 0.2, br.Average(0.9), debias=True)
    rates = average.rate_tensors(0, CPU)
    kinds = {name: isinstance(getattr(rates, name), Tensor) for name in rates._fields}
    assert kinds == {"learning_rate": True, "rate": False, "seen": True, "unbiased": True}
    average.refill(rates, 4)
    assert_close([float(v) for v in rates], [float(v) for v in average.rates(4)])


@pytest.mark.parametrize(
    "rule",
    [
        br.Natural(0.1, linear(0.5, 0.1, 4), br.Average(0.9), retract=True, clip=0.1),
        br.Natural(0.1, 0.2, br.Average(0.9), square_root=True, debias=True),
        br.Natural(linear(0.1, 0.2, 4), 0.2, br.rules.Velocity(0.9), kl_clip=0.1, damping=0.1),
        br.Natural(0.1, 0.2, br.Average(0.9), square_root=True, prior_at_draws=True),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_no_step_reads_the_value_of_a_rate(rule: br.Natural, earlier: bool) -> None:
    """A GPU would have to wait for it; tensors without values show whether anybody asks."""
    family = br.GaussianFamily()
    with FakeTensorMode():
        mean = {"w": torch.ones(3)}
        old = EarlierPosterior(Gaussian(mean, DiagonalMatrix({"w": torch.ones(3)})))
        prior = old if earlier else GaussianPrior(2.0)
        posterior = family.init(mean, weight=5.0, prior=prior)
        memory = rule.init(family, posterior, 5.0)
        tensors = rule.rate_tensors(1, CPU)
        # A tensor made from a number would remember it.
        rates = NaturalRates(*(torch.empty(()) if isinstance(r, Tensor) else r for r in tensors))
        assert any(isinstance(rate, Tensor) for rate in rates)
        curvature = DiagonalMatrix({"w": torch.ones(3)})
        average = {"w": torch.ones(3)}
        derivatives = Derivatives(torch.ones(()), average, curvature, 5.0, average=average)
        moved, _ = rule.move(Now(posterior, derivatives, prior, memory, rates, 1))
        assert moved.mean["w"].shape == (3,)
