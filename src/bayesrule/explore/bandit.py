"""Contextual bandits with any method: choosing actions and learning from their rewards.

Also off-policy evaluation: what a policy would have earned, from the logs of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.explore.information import gaussian_gain
from bayesrule.explore.thompson import DrawnFunction
from bayesrule.learner import Learner
from bayesrule.predicting.predict import predict

Features = Callable[[Tensor, int], Tensor]
"""Maps a context (d,) and the number of actions A to the network's inputs (A, k)."""


def beside(context: Tensor, actions: int) -> Tensor:
    """The context followed by the one-hot action: (A, d + A)."""
    return torch.cat([context.expand(actions, -1), torch.eye(actions).to(context)], 1)


def by_action(context: Tensor, actions: int) -> Tensor:
    """The context in the block of its action, zero elsewhere: (A, A · d)."""
    return torch.einsum("ab,d->abd", torch.eye(actions).to(context), context).flatten(1)


class Policy(ABC):
    """Chooses an action from the predicted rewards of all actions."""

    @abstractmethod
    def choose(self, bandit: Bandit, x: Tensor, generator: Generator) -> int:
        """The action to take, for inputs x (A, k), one row for each action."""


@dataclass(frozen=True)
class Thompson(Policy):
    """The best action of one function drawn from the belief, redrawn every `every` rounds."""

    every: int = 1

    def choose(self, bandit: Bandit, x: Tensor, generator: Generator) -> int:
        return int(bandit.function(self.every)(x).reshape(-1).argmax())


@dataclass(frozen=True)
class UpperBound(Policy):
    """The largest `mean + width · std` of the epistemic spread; Li et al. (2010)."""

    width: float = 1.0

    def choose(self, bandit: Bandit, x: Tensor, generator: Generator) -> int:
        p = predict(bandit.learner, bandit.belief, x)
        return int((p.mean + self.width * p.epistemic.sqrt()).reshape(-1).argmax())


@dataclass(frozen=True)
class EpsilonGreedy(Policy):
    """The action of the best mean, or with probability `epsilon` a random one; 0 is greedy."""

    epsilon: float = 0.0

    def choose(self, bandit: Bandit, x: Tensor, generator: Generator) -> int:
        if float(torch.rand((), generator=generator)) < self.epsilon:
            return int(torch.randint(len(x), (), generator=generator))
        return int(predict(bandit.learner, bandit.belief, x).mean.reshape(-1).argmax())


@dataclass(frozen=True)
class InformationDirected(Policy):
    """The least `(regret)² / gain`, with the regret against the highest `mean + width · std`.

    The deterministic form of Russo & Van Roy (2014), with the information gain about the weights;
    Kirschner & Krause (2018), eq. 6.
    """

    width: float = 1.0

    def choose(self, bandit: Bandit, x: Tensor, generator: Generator) -> int:
        p = predict(bandit.learner, bandit.belief, x)
        mean, std = p.mean.reshape(-1), p.epistemic.sqrt().reshape(-1)
        gain = gaussian_gain(p.epistemic, p.aleatoric)
        regret = (mean + self.width * std).max() - (mean - self.width * std)
        return int((regret.square() / gain.clamp_min(1e-12)).argmin())


class Bandit:
    """Acts and learns, round by round, with a learner of one output, the reward.

    - `features`: makes the network's inputs of a context and the number of actions.
    - `every`, `steps`: after every `every` rounds, the learner takes `steps` steps.
    - `replay`: a step learns from the new rounds and this many drawn from the memory; -1 takes the
      whole memory.
    - `window`: the memory keeps only this many last rounds; None keeps all.

    Actions follow `belief`: the state, or for Laplace the state after `Learner.finish` over the
    whole memory, anew after each learning.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> learner = tagi(nn.Linear(4, 1), GaussianLikelihood(noise=0.5), num_data=1)
    >>> bandit = Bandit(learner, actions=2)
    >>> context = torch.tensor([1.0, -1.0])
    >>> action = bandit.choose(context)
    >>> bandit.observe(context, action, reward=1.0)
    >>> bandit.rounds, bandit.state.step
    (1, 1)
    """

    def __init__(
        self,
        learner: Learner,
        *,
        actions: int,
        policy: Policy | None = None,
        features: Features = beside,
        every: int = 1,
        steps: int = 1,
        replay: int = 0,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        if actions < 2 or every < 1 or steps < 1 or replay < -1:
            got = f"actions={actions}, every={every}, steps={steps}, replay={replay}"
            raise ValueError(f"A bandit has 2 actions or more, every and steps from 1; got {got}.")
        self.learner, self.state = learner, learner.init(seed)
        self.belief = self.state
        self.actions, self.policy, self.features = actions, policy or Thompson(), features
        self.every, self.steps, self.replay, self.window = every, steps, replay, window
        self.rounds, self._seed = 0, seed
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn: DrawnFunction | None = None
        self._inputs: list[Tensor] = []
        self._rewards: list[float] = []

    def choose(self, context: Tensor) -> int:
        """The action to take in a context (d,)."""
        return self.policy.choose(self, self.features(context, self.actions), self._generator)

    def observe(self, context: Tensor, action: int, reward: float) -> None:
        """Remembers a reward, and learns every `every` rounds."""
        self._inputs.append(self.features(context, self.actions)[action])
        self._rewards.append(float(reward))
        if self.window is not None:
            del self._inputs[: -self.window], self._rewards[: -self.window]
        self.rounds += 1
        if self.rounds % self.every == 0:
            self._learn()

    def function(self, every: int = 1) -> DrawnFunction:
        """The function drawn from the belief to act by; redrawn every `every` rounds."""
        seed = self._seed * 1_000_003 + self.rounds
        if self._drawn is None:
            self._drawn = DrawnFunction(self.learner, self.belief, seed=seed)
        elif self.rounds % every == 0:
            self._drawn.redraw(self.belief, seed=seed)
        return self._drawn

    def _learn(self) -> None:
        size = len(self._rewards)
        # Another num_data needs another learner, so small changes of it are ignored.
        if self.learner.curvature.whole_data and not 0.9 <= self.learner.num_data / size <= 1.1:
            self.learner = self.learner.replaced(num_data=size)
        for _ in range(self.steps):
            batch = self._batch(self._rows(size))
            self.state, _ = self.learner.step(self.state, batch)
        self.belief = self.state
        if self.learner.final_curvature is not None:
            self.belief = self.learner.finish(self.state, [self._batch(list(range(size)))])

    def _batch(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        x = torch.stack([self._inputs[row] for row in rows])
        return x, torch.tensor([self._rewards[row] for row in rows]).to(x).unsqueeze(1)

    def _rows(self, size: int) -> list[int]:
        if self.replay == -1:
            return list(range(size))
        new = list(range(max(0, size - self.every), size))
        if not self.replay:
            return new
        drawn = torch.randint(size, (self.replay,), generator=self._generator).tolist()
        return new + drawn


@dataclass(frozen=True)
class Value:
    """An estimate of the mean reward of a policy, and its standard error."""

    value: float
    error: float


def inverse_propensity(
    rewards: Tensor, propensities: Tensor, probabilities: Tensor, *, normalised: bool = False
) -> Value:
    """The mean of `r π(a | x) / p` over logged rewards r, all (n,); unbiased.

    `propensities` p are the probabilities with which the logged actions were taken, and
    `probabilities` π those with which the policy would take the same actions. If `normalised`, the
    mean is divided by the mean weight: less variance, a little bias; Swaminathan & Joachims (2015).

    >>> rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> inverse_propensity(rewards, torch.full((4,), 0.5), torch.tensor([1.0, 0, 1, 0])).value
    1.0
    """
    weights = _weights(propensities, probabilities)
    if not normalised:
        return _mean(weights * rewards)
    share = weights / weights.mean()
    value = float((share * rewards).mean())
    return Value(value, _mean(share * (rewards - value)).error)


def doubly_robust(
    rewards: Tensor, actions: Tensor, propensities: Tensor, policy: Tensor, predicted: Tensor
) -> Value:
    """The mean of `Σ_a π(a | x) r̂(x, a) + (r − r̂(x, a)) π(a | x) / p`; Dudík et al. (2011), eq. 1.

    `policy` (n, A) are the policy's probabilities and `predicted` (n, A) a model's rewards for all
    actions. It is unbiased if either the propensities or the model are right.
    """
    chosen = actions.long().unsqueeze(1)
    weights = _weights(propensities, policy.gather(1, chosen).squeeze(1))
    residual = rewards - predicted.gather(1, chosen).squeeze(1)
    return _mean((policy * predicted).sum(1) + weights * residual)


def _weights(propensities: Tensor, probabilities: Tensor) -> Tensor:
    if not ((propensities > 0) & (propensities <= 1)).all():
        raise ValueError(
            "Propensities are the probabilities with which logged actions were taken, above 0 and "
            f"at most 1, got {float(propensities.min())} to {float(propensities.max())}."
        )
    return probabilities / propensities


def _mean(values: Tensor) -> Value:
    return Value(float(values.mean()), float(values.std() / len(values) ** 0.5))
