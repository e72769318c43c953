"""Noisy natural gradients and plain optimisers on images: how they are made, and what they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.methods import noisy_kfac
from bayesrule.rules import Elbo, Natural, Velocity
from benchmarks.images import noisy_tasks, variational
from benchmarks.images.noisy_tasks import METHODS, sgd, small_cnn, tempered
from benchmarks.images.variational import Trial

from .small_tasks import noisy

NUM, DECAY = 40, 0.05


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(noisy_tasks.TASKS, "small", noisy())


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 10, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (4, 10), generator=generator)
    return list(zip(x, y, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_sgd_is_torchs_own_with_weight_decay(temperature: float) -> None:
    net = nn.Linear(3, 2).double()
    learner = tempered(sgd)(
        net,
        CategoricalLikelihood(),
        num_data=NUM,
        learning_rate=0.1,
        prior_precision=DECAY * NUM,
        temperature=temperature,
    )
    state = learner.init()
    for batch in batches():
        state, _ = learner.step(state, batch)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=DECAY)
    for x, y in batches():
        optimiser.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    assert_close(state.posterior.mean, {k: v.detach() for k, v in net.named_parameters()})


def test_a_temperature_spreads_the_weights_and_leaves_the_prior_pull() -> None:
    def made(temperature: float) -> Any:
        return tempered(noisy_kfac)(
            nn.Linear(3, 2),
            CategoricalLikelihood(),
            num_data=NUM,
            prior_precision=DECAY * NUM,
            temperature=temperature,
        )

    warm, cold = made(1.0), made(0.25)
    assert cold.temperature == 0.25
    assert cold.prior_precision / cold.weight == warm.prior_precision / warm.weight == DECAY
    wide, narrow = (one.init().posterior.variance() for one in (warm, cold))
    assert_close(narrow["weight"], 0.25 * wide["weight"])


def test_every_method_learns_and_predicts_in_its_ways() -> None:
    given = [Trial(name, 0.1) if one.settings else Trial(name) for name, one in METHODS.items()]
    lines: list[str] = []
    found = variational.run("small", given, epochs=6, held_out=60, show=lines.append)
    ways = [(one["method"], one["way"]) for one in found["results"]]
    assert ways == [(name, way) for name, one in METHODS.items() for way in one.ways]
    assert [line[6:] for line in lines if line.startswith("[")][1:3] == [
        "sgd",
        "noisy_adam, temperature 0.1",
    ]
    for one in found["results"]:
        assert one["history"][-1]["loss"] < one["history"][0]["loss"]
        if one["method"] != "noisy_adam":  # its rate is one for many more steps than these
            assert one["test"]["accuracy"] > 80, one["method"]


def test_the_task_and_the_trial_say_how_a_learner_is_made() -> None:
    device = torch.device("cpu")
    learner = variational._learner(
        noisy(), Trial("noisy_kfac", 0.1, rate_multiplier=3.0), device, 240, 100
    )
    rule = learner.rule
    assert isinstance(rule, Natural)
    assert (rule.stats_every, rule.inverse_every, rule.momentum) == (1, 5, Velocity(0.9))
    assert callable(rule.learning_rate)
    assert rule.learning_rate(2) == pytest.approx(0.03)
    assert learner.prior_precision == pytest.approx(100.0)
    other = variational._learner(noisy(), Trial("sgd"), device, 240, 100).rule
    assert isinstance(other, Elbo)
    assert callable(other.learning_rate)
    assert other.learning_rate(2) == pytest.approx(0.05), "the method's own, not the task's"


def test_settings_of_methods_are_facts_of_a_result() -> None:
    facts = variational.facts("small")
    assert facts["own"]["noisy_kfac"]["inverse_every"] == 5
    assert facts["learning_rate"] == 1e-2


@pytest.mark.parametrize("name", ["fashion-noisy", "cifar10-noisy"])
def test_tasks_name_options_that_their_methods_have(name: str) -> None:
    task = noisy_tasks.TASKS[name]
    assert set(task.own) <= set(task.methods) == set(METHODS)
    for method in task.methods:
        own = task.own.get(method, {})
        made = METHODS[method].make(
            nn.Linear(2, 2),
            CategoricalLikelihood(),
            num_data=9,
            prior_precision=task.prior_precision,
            temperature=task.temperatures[0],
            **{"learning_rate": task.learning_rate, **own},
        )
        assert getattr(made.rule, "stats_every", 1) == own.get(
            "stats_every", 10 if method == "noisy_kfac" else 1
        )


def test_nets_start_alike() -> None:
    first, second = (small_cnn().state_dict() for _ in range(2))
    assert_close(first, second)
    assert small_cnn()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    kept = torch.get_rng_state()
    noisy_tasks._resnet18()
    assert torch.equal(torch.get_rng_state(), kept)
