"""The agents that play the bandits: the library's methods, and the usual ones."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.explore import Bandit, EpsilonGreedy, Policy, by_action
from bayesrule.training.models import mlp
from benchmarks.explore.linear import LinearHeads
from benchmarks.explore.problems import Problem

HIDDEN = 50
EVERY = 20


class Agent(Protocol):
    """Chooses an action in a context (d,), and learns from its reward, as `Bandit` does."""

    def choose(self, context: Tensor) -> int:
        """The action to take."""

    def observe(self, context: Tensor, action: int, reward: float) -> None:
        """Learns from the reward of the action that was taken."""


class LinearThompson:
    """Thompson draws of an exact linear regression for each action."""

    def __init__(self, problem: Problem, seed: int, **options: float) -> None:
        self._heads = LinearHeads(problem.actions, problem.contexts.shape[1], **options)
        self._generator = torch.Generator().manual_seed(seed)

    def choose(self, context: Tensor) -> int:
        return int((self._heads.draw(self._generator) @ context.double()).argmax())

    def observe(self, context: Tensor, action: int, reward: float) -> None:
        self._heads.observe(action, context[None], torch.tensor([reward]))


class NeuralLinear:
    """Thompson draws of an exact linear regression on the hidden units of a net that is trained.

    The regressions learn from every reward, and anew from all rewards after the net has changed.
    Riquelme et al. (2018), sec. 3.
    """

    def __init__(
        self, problem: Problem, seed: int, *, precision: float, rate: float, **options: Any
    ) -> None:
        self._bandit = playing(problem, seed, "map", EpsilonGreedy(), **options)
        self._prior = {"precision": precision, "shape": 6.0, "rate": rate}
        self._generator = torch.Generator().manual_seed(seed)
        self._taken: list[list[tuple[Tensor, float]]] = [[] for _ in range(problem.actions)]
        self._refit()

    def choose(self, context: Tensor) -> int:
        draws = self._heads.draw(self._generator)
        return int((draws * self._units(context)).sum(1).argmax())

    def observe(self, context: Tensor, action: int, reward: float) -> None:
        self._bandit.observe(context, action, reward)
        self._taken[action].append((context, reward))
        if self._bandit.rounds % self._bandit.every == 0:
            self._refit()
        else:
            units = self._units(context)[action]
            self._heads.observe(action, units[None], torch.tensor([reward]))

    @torch.no_grad()
    def _refit(self) -> None:
        net = copy.deepcopy(self._bandit.learner.model)
        net.load_state_dict(self._bandit.state.posterior.mean)
        self._body = nn.Sequential(*list(net.children())[:-1])
        self._heads = LinearHeads(len(self._taken), HIDDEN + 1, **self._prior)
        for action, seen in enumerate(self._taken):
            if seen:
                units = torch.stack([self._units(context)[action] for context, _ in seen])
                self._heads.observe(action, units, torch.tensor([reward for _, reward in seen]))

    @torch.no_grad()
    def _units(self, context: Tensor) -> Tensor:
        """The hidden units of all actions and a constant, (A, hidden + 1)."""
        units = self._body(by_action(context, len(self._taken)))
        return nn.functional.pad(units, (0, 1), value=1.0).double()


def playing(
    problem: Problem,
    seed: int,
    method: str,
    policy: Policy,
    *,
    noise: float = 0.1,
    steps: int = 20,
    replay: int = 64,
    **options: Any,
) -> Bandit:
    """A bandit with a net of one hidden layer, with first-layer weights for each action."""
    inputs = problem.actions * problem.contexts.shape[1]
    net, likelihood = mlp(inputs, 1, (HIDDEN,), seed=seed), br.GaussianLikelihood(noise=noise)
    learner = getattr(br, method)(net, likelihood, num_data=len(problem.contexts), **options)
    play = {"every": EVERY, "steps": steps, "replay": replay, "seed": seed}
    return Bandit(learner, actions=problem.actions, policy=policy, features=by_action, **play)
