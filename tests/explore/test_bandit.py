"""Bandits find the better action, and logs tell the value of a policy that is known."""

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.explore import (
    Bandit,
    DrawnFunction,
    EpsilonGreedy,
    InformationDirected,
    Thompson,
    UpperBound,
    beside,
    by_action,
    doubly_robust,
    inverse_propensity,
)  # fmt: skip

WEIGHTS = torch.tensor([[1.0, 0.0, 0.3], [0.0, 1.0, -0.2], [-1.0, 0.5, 0.0]])
METHODS: dict[str, Any] = {
    "tagi": (br.tagi, {}, {}),
    "vogn": (br.vogn, {"prior_precision": 0.1}, {"replay": 32, "steps": 4}),
    "noisy_kfac": (br.noisy_kfac, {}, {"replay": 16}),
    "ridge": (br.ridge, {}, {"replay": -1, "every": 10}),
    "laplace": (br.laplace, {"learning_rate": 0.03}, {"replay": 16, "every": 5, "steps": 10}),
}


def _play(bandit: Bandit, rounds: int) -> float:
    """The mean regret over the last half of the rounds; 0.9 by chance."""
    generator = torch.Generator().manual_seed(7)
    regrets = []
    for _ in range(rounds):
        context = torch.randn(3, generator=generator)
        rewards = WEIGHTS @ context
        action = bandit.choose(context)
        noise = 0.1 * float(torch.randn((), generator=generator))
        bandit.observe(context, action, float(rewards[action]) + noise)
        regrets.append(float(rewards.max() - rewards[action]))
    return sum(regrets[rounds // 2 :]) / (rounds - rounds // 2)


def _bandit(name: str, policy: Any, **more: Any) -> Bandit:
    torch.manual_seed(0)
    method, options, how = METHODS[name]
    learner = method(nn.Linear(9, 1), br.GaussianLikelihood(noise=0.1), num_data=1, **options)
    return Bandit(learner, actions=3, policy=policy, features=by_action, **{**how, **more})


@pytest.mark.parametrize("name", METHODS)
def test_thompson_finds_the_better_action(name: str) -> None:
    assert _play(_bandit(name, Thompson()), 300) < 0.15


@pytest.mark.parametrize(
    "policy", [Thompson(every=5), UpperBound(), InformationDirected(), EpsilonGreedy(0.05)]
)
def test_policies_find_the_better_action(policy: Any) -> None:
    assert _play(_bandit("tagi", policy), 300) < 0.15


def test_what_lies_beyond_the_window_is_forgotten() -> None:
    bandit = _bandit("ridge", Thompson(), window=20, every=20)
    _play(bandit, 60)
    assert len(bandit._rewards) == len(bandit._inputs) == 20
    assert bandit.learner.num_data == 20


def test_laplace_acts_by_the_curvature_of_all_its_rewards() -> None:
    bandit = _bandit("laplace", Thompson())
    _play(bandit, 20)
    x, y = torch.stack(bandit._inputs), torch.tensor(bandit._rewards).unsqueeze(1)
    expected = bandit.learner.finish(bandit.state, [(x, y)]).posterior.variance()
    torch.testing.assert_close(bandit.belief.posterior.variance(), expected)
    known, first = bandit.belief.posterior, bandit.state.posterior
    assert float(known.variance()["weight"].sum()) < 0.9 * float(first.variance()["weight"].sum())
    bandit.choose(torch.randn(3))
    drawn = DrawnFunction(bandit.learner, bandit.belief, seed=bandit.rounds)
    assert torch.equal(bandit.function()(x), drawn(x))


def test_features() -> None:
    context = torch.tensor([1.0, 2.0])
    assert beside(context, 2).tolist() == [[1, 2, 1, 0], [1, 2, 0, 1]]
    assert by_action(context, 2).tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]


def test_odd_options_are_refused() -> None:
    learner = br.tagi(nn.Linear(9, 1), br.GaussianLikelihood(noise=0.1), num_data=1)
    with pytest.raises(ValueError, match="actions=1"):
        Bandit(learner, actions=1)


def _logs(n: int) -> tuple[torch.Tensor, ...]:
    """Contexts, actions, propensities and rewards of a policy that prefers the first action."""
    generator = torch.Generator().manual_seed(3)
    contexts = torch.randn(n, 3, generator=generator)
    preferred = torch.tensor([0.6, 0.3, 0.1])
    actions = torch.multinomial(preferred, n, replacement=True, generator=generator)
    rewards = (contexts @ WEIGHTS.T).gather(1, actions[:, None])[:, 0]
    rewards = rewards + 0.3 * torch.randn(n, generator=generator)
    return contexts, actions, preferred[actions], rewards


def test_logged_values_are_those_of_the_policy() -> None:
    contexts, actions, propensities, rewards = _logs(40_000)
    truth = contexts @ WEIGHTS.T
    policy = nn.functional.one_hot(truth.argmax(1), 3).to(rewards)
    # The best action's mean reward, from contexts of which there are far more.
    known = torch.randn(2_000_000, 3, generator=torch.Generator().manual_seed(9)) @ WEIGHTS.T
    value = float(known.amax(1).mean())
    taken = policy.gather(1, actions[:, None])[:, 0]
    found = [
        inverse_propensity(rewards, propensities, taken),
        inverse_propensity(rewards, propensities, taken, normalised=True),
        doubly_robust(rewards, actions, propensities, policy, truth),
        doubly_robust(rewards, actions, propensities, policy, torch.zeros_like(truth)),
        # Wrong propensities, but the right model.
        doubly_robust(rewards, actions, 0.5 * propensities, policy, truth),
    ]
    for estimate in found:
        assert abs(estimate.value - value) < 4 * estimate.error
    assert found[2].error < 0.5 * found[0].error
    wrong = inverse_propensity(rewards, 0.5 * propensities, taken)
    assert abs(wrong.value - value) > 10 * wrong.error


def test_propensities_are_probabilities() -> None:
    with pytest.raises(ValueError, match="Propensities"):
        inverse_propensity(torch.ones(2), torch.tensor([0.0, 0.5]), torch.ones(2))
