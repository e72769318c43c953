"""Q-learning by TAGI with Thompson draws, in one file, for Gymnasium's environments.

    pip install 'bayesrule[explore]'
    python examples/q_learning.py CartPole-v1
    python examples/q_learning.py DeepSea-v0 --size 20 --out sea
    python examples/q_learning.py LunarLander-v3 --out lander --seed 3

A draw from a belief over action values is one guess at how the world may be; acting by it for a
whole episode explores far (Osband et al., 2019). Here the draws themselves learn. Each of `nets`
networks starts from a draw of the prior, and is conditioned by TAGI on rewards that have noise of
its own and on the next value as it believes it itself. For a linear model each of them is then an
exact draw from the posterior, and what is not known of a next state is not averaged away, as it
would be if it were noise of the target. No gradient is taken anywhere.

With --out a folder, it holds a checkpoint, from which the same call goes on, the returns as json
and their picture.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot
from bayesrule.training.models import mlp

try:
    import gymnasium
    from gymnasium import spaces
except ImportError:
    sys.exit("This example needs Gymnasium: pip install 'bayesrule[explore]'")


@dataclass(frozen=True)
class Settings:
    """How values are learned.

    Rewards are multiplied by `scale`, so that values are of about the size one; `noise` is the
    standard deviation that is believed of a target. Every `every` steps all nets learn from
    `batch` transitions each, and every `lag` steps the nets that targets come from catch up.
    """

    steps: int = 100_000
    nets: int = 10
    hidden: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    scale: float = 0.01
    noise: float = 0.1
    gain: float = 1.0
    batch: int = 32
    every: int = 2
    lag: int = 500
    memory: int = 50_000
    start: int = 500


SETTINGS = {
    "CartPole-v1": Settings(),
    "LunarLander-v3": Settings(steps=500_000, memory=200_000, every=4, lag=1000, start=2000),
    "DeepSea-v0": Settings(steps=40_000, hidden=(50,), scale=1.0, lag=20, every=1, start=100),
}


class DeepSea(gymnasium.Env[Any, int]):
    """A grid of N × N; each step goes a row down, left or right; Osband et al. (2019), sec. 4.

    Which action goes right differs from cell to cell. Going right costs 0.01 / N, and only who goes
    right in all N rows finds the treasure of 1: one in 2ᴺ of those who act at random.
    """

    def __init__(self, size: int = 10, seed: int = 0) -> None:
        self.size, self.row, self.column = size, 0, 0
        random = torch.Generator().manual_seed(seed)
        self.right = torch.randint(2, (size, size), generator=random).tolist()
        self.observation_space = spaces.Box(0.0, float(size), (size * size,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = int(action) == self.right[self.row][self.column]
        treasure = right and self.column == self.size - 1
        reward = (1.0 if treasure else 0.0) - (0.01 / self.size if right else 0.0)
        self.column = min(max(self.column + (1 if right else -1), 0), self.size - 1)
        self.row += 1
        return self._seen(), reward, self.row == self.size, False, {}

    def _seen(self) -> Any:
        """The cell, one-hot; so long that weights of the usual first size make values of size 1."""
        seen = torch.zeros(self.size * self.size)
        if self.row < self.size:
            seen[self.row * self.size + self.column] = float(self.size)
        return seen.numpy()


gymnasium.register("DeepSea-v0", entry_point=DeepSea)


class Memory:
    """The last transitions, and for each net its own noise of their rewards."""

    def __init__(self, size: int, observed: int, nets: int) -> None:
        self.size, self.seen = size, 0
        self.x, self.after = torch.zeros(size, observed), torch.zeros(size, observed)
        self.action = torch.zeros(size, dtype=torch.long)
        self.reward, self.goes_on = torch.zeros(size), torch.zeros(size)
        self.noise = torch.zeros(size, nets)

    def add(
        self, x: Tensor, action: int, reward: float, after: Tensor, ended: bool, noise: Tensor
    ) -> None:
        row = self.seen % self.size
        self.x[row], self.action[row], self.reward[row] = x, action, reward
        self.after[row], self.goes_on[row], self.noise[row] = after, float(not ended), noise
        self.seen += 1

    def rows(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(min(self.seen, self.size), shape, generator=generator)


class Agent:
    """Nets that are draws from the belief over action values, and what they learn from."""

    def __init__(self, observed: int, actions: int, settings: Settings, seed: int) -> None:
        self.settings, self.actions, self.steps = settings, actions, 0
        net = mlp(observed, actions, settings.hidden, seed=seed)
        likelihood = br.GaussianLikelihood(noise=settings.noise)
        learner = br.tagi(net, likelihood, num_data=1, gain=settings.gain)
        self.stack = br.execution.Stacked(learner, settings.nets)
        self.state = self.stack.init(range(seed * settings.nets, (seed + 1) * settings.nets))
        self.target = self.values_by()
        self.memory = Memory(settings.memory, observed, settings.nets)
        self.generator = torch.Generator().manual_seed(seed)
        self.leader = 0

    def values_by(self) -> dict[str, Tensor]:
        """A copy of all nets' weights."""
        return {name: value.clone() for name, value in self.state.posterior.mean.items()}

    def values(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """What all nets believe of all actions, (nets, n, actions), for x (nets, n, d)."""
        layers = list(weights.values())
        for number, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
            x = torch.baddbmm(bias[:, None], x.relu() if number else x, weight.mT)
        return x

    def follow(self) -> None:
        """Another net leads, from now on to the end of the episode."""
        self.leader = int(torch.randint(self.settings.nets, (), generator=self.generator))

    @torch.no_grad()
    def act(self, x: Tensor) -> int:
        """What the leader thinks best."""
        own = {k: v[self.leader, None] for k, v in self.state.posterior.mean.items()}
        return int(self.values(own, x[None, None]).argmax())

    @torch.no_grad()
    def act_by_all(self, x: Tensor) -> int:
        """What is best by the mean over all nets, to be judged by."""
        x = x.expand(self.settings.nets, 1, -1)
        return int(self.values(dict(self.state.posterior.mean), x).mean((0, 1)).argmax())

    def observe(self, x: Tensor, action: int, reward: float, after: Tensor, ended: bool) -> None:
        """Remembers a transition, and learns where it is time to."""
        s = self.settings
        noise = s.noise * torch.randn(s.nets, generator=self.generator)
        self.memory.add(x, action, s.scale * reward, after, ended, noise)
        self.steps += 1
        if self.steps >= s.start and self.steps % s.every == 0:
            self._learn()
        if self.steps % s.lag == 0:
            self.target = self.values_by()

    @torch.no_grad()
    def _learn(self) -> None:
        s, memory = self.settings, self.memory
        rows = memory.rows((s.nets, s.batch), self.generator)
        best = self.values(self.target, memory.after[rows]).amax(2)
        noise = memory.noise[rows, torch.arange(s.nets)[:, None]]
        y = memory.reward[rows] + noise + s.discount * memory.goes_on[rows] * best
        # A target is known of the action that was taken alone.
        known = torch.full((*y.shape, self.actions), torch.nan)
        known = known.scatter(2, memory.action[rows][..., None], y[..., None])
        self.state, _ = self.stack.step(self.state, (memory.x[rows], known), donate=True)
