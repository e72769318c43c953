"""What is kept, and where, when steps are replayed; a graph here takes its step again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.execution import replayed
from bayesrule.matrices import Kronecker
from bayesrule.posteriors import GaussianFamily
from bayesrule.rules import Average, Velocity
from bayesrule.tensors import seeds, tree
from bayesrule.types import State


def captured(self: br.execution.Replayed, state: State, x: Tensor, y: Tensor, key: object) -> Any:
    """As on a GPU, with a graph that is no more than a call."""
    own = tree.map_tensors(state, torch.clone)
    known = tree.map_tensors(replayed.roots(state), torch.clone)
    generators = [seeds.generator("cpu", state.seed, state.step, 3 + k) for k in range(2)]
    placed = self.rule.placed(state.step, x.device)
    rates = type(placed)(*(r.to(x.dtype) if isinstance(r, Tensor) else r for r in placed))
    x, y, loss = x.clone(), y.clone(), torch.zeros((), dtype=x.dtype)

    def replay() -> None:
        new, found = self._advance(replayed.seen_anew(own, known), x, y, rates, generators)
        replayed.copy_into(own, new)
        replayed.copy_into(known, replayed.roots(new))
        loss.copy_(found)

    return replayed._Plan(SimpleNamespace(replay=replay), x, y, rates, own, known, loss, key)  # type: ignore[arg-type]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(br.execution.Replayed, "_captured", captured)
    monkeypatch.setattr(br.execution.Replayed, "_on_gpu", lambda self, x: True)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def learner(rule: br.rules.Rule, structure: br.matrices.Structure | None = None) -> br.Learner:
    torch.manual_seed(0)
    return br.Learner(
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double(),
        br.GaussianLikelihood(noise=0.3),
        num_data=50,
        posterior=GaussianFamily(structure or Kronecker()),
        expectation=br.AtMean(),
        curvature=br.GGN(),
        rule=rule,
    )


RULES = {
    "every step": br.Natural(br.schedules.cosine(0.05, 30), 0.05, momentum=Average(0.9)),
    "some steps": br.Natural(0.05, 0.05, stats_every=2, inverse_every=6, kl_clip=1e-2),
    "damped": br.Natural(
        0.05, 0.1, momentum=Velocity(0.5), damping=1e-2, stats_every=3, inverse_every=5
    ),
}


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("structure", [Kronecker(), br.Diagonal()])
@pytest.mark.parametrize("rule", RULES)
def test_noisy_steps_are_those_of_the_learner(rule: str, structure: br.matrices.Structure) -> None:
    made = learner(RULES[rule], structure)
    step, state, other = br.execution.Replayed(made).step, made.init(), made.init()
    for _ in range(20):
        state, info = made.step(state, data())
        other, found = step(other, data(), donate=True)
        torch.testing.assert_close(found.loss, info.loss, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.kl, info.kl, rtol=1e-9, atol=1e-9)
    assert other.step == 20
    for (name, value), (_, mine) in zip(tree.leaves(state), tree.leaves(other), strict=True):
        if isinstance(value, Tensor):
            torch.testing.assert_close(mine, value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.usefixtures("graphs")
def test_a_state_from_elsewhere_is_taken_up() -> None:
    made = learner(RULES["some steps"])
    step, state = br.execution.Replayed(made).step, made.init()
    for _ in range(8):
        state, _ = step(state, data(), donate=True)
    kept = tree.map_tensors(state, torch.clone)
    wanted = kept
    for _ in range(5):
        state, _ = step(state, data(), donate=True)
        wanted, _ = made.step(wanted, data())
    for _ in range(5):
        kept, _ = step(kept, data(), donate=True)
    for mine in (state, kept):
        for name, value in wanted.posterior.mean.items():
            torch.testing.assert_close(mine.posterior.mean[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("graphs")
def test_the_kl_of_a_state_that_was_changed_is_refused() -> None:
    made = learner(RULES["every step"])
    step, state = br.execution.Replayed(made).step, made.init()
    state, first = step(state, data())
    state, _ = step(state, data())
    with pytest.raises(RuntimeError, match="A later step has changed"):
        _ = first.kl


def test_what_cannot_be_replayed_is_refused_by_name() -> None:
    net, likelihood = nn.Linear(2, 1), br.GaussianLikelihood(noise=0.1)
    for method in (br.noisy_ekfac, br.noisy_full, br.vogn):
        with pytest.raises(TypeError, match="Replayed steps are for"):
            br.execution.Replayed(method(net, likelihood, num_data=10))


def test_rates_that_no_step_changes_stay_numbers() -> None:
    rule = br.Elbo(br.schedules.linear(0.1, 0.2, 10), kl_weight=0.5)
    placed = rule.placed(0, torch.device("cpu"))
    assert isinstance(placed.learning_rate, Tensor)
    assert placed.kl_weight == 0.5
    rule.refill(placed, 10)
    torch.testing.assert_close(placed.learning_rate, torch.tensor(0.2))
    changing = br.Elbo(0.1, kl_weight=br.schedules.linear(0.0, 1.0, 10))
    placed = changing.placed(5, torch.device("cpu"))
    assert all(isinstance(place, Tensor) for place in placed)
    torch.testing.assert_close(placed.kl_weight, torch.tensor(0.5))
