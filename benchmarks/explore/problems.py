"""Contextual bandits: contexts, mean rewards of all actions, and sampled rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Generator, Tensor, nn

from benchmarks.data import bandit
from benchmarks.data.bandit import Floats, Numbers


@dataclass(frozen=True, eq=False)
class Problem:
    """Contexts (n, d), and mean rewards and rewards (n, A) of all actions; one row is one round.

    Contexts end with a constant. Rewards are divided by the largest one there is.
    """

    contexts: Tensor
    means: Tensor
    rewards: Tensor

    @property
    def actions(self) -> int:
        """How many actions there are."""
        return self.means.shape[1]

    @property
    def regrets(self) -> Tensor:
        """The mean reward of the best action less that of each, (n, A)."""
        return self.means.amax(1, keepdim=True) - self.means

    @property
    def regret_by_chance(self) -> float:
        """The expected regret of random actions over all rounds."""
        return float(self.regrets.mean(1).sum())


def make(name: str, seed: int, rounds: int | None = None) -> Problem:
    """A problem by name; contexts, their order and the noise follow from the seed."""
    entry = PROBLEMS[name]
    generator = torch.Generator().manual_seed(seed)
    problem = entry.make(rounds or entry.rounds, generator)
    constant = torch.ones(len(problem.contexts), 1)
    return replace(problem, contexts=torch.cat([problem.contexts, constant], 1))


@dataclass(frozen=True)
class Kind:
    """How a problem is made, and over how many rounds it is played."""

    make: Callable[[int, Generator], Problem]
    rounds: int


def _mushroom(rounds: int, generator: Generator) -> Problem:
    """Eat or not: edible mushrooms earn +5, poisonous ones +5 or −35; Blundell et al. (2015)."""
    x, y = _drawn(_of("mushroom"), rounds, generator)
    poisonous = y == 1
    hurt = poisonous & (torch.rand(rounds, generator=generator) < 0.5)
    eaten = torch.where(hurt, -35.0, 5.0)
    mean = torch.where(poisonous, -15.0, 5.0)
    nothing = torch.zeros(rounds)
    return Problem(x, torch.stack([nothing, mean], 1) / 35, torch.stack([nothing, eaten], 1) / 35)


def _classes(name: str) -> Callable[[int, Generator], Problem]:
    """The action that names the class earns one, the others nothing."""

    def made(rounds: int, generator: Generator) -> Problem:
        x, y = _drawn(_of(name), rounds, generator)
        earned = nn.functional.one_hot(y, int(_of(name)[1].max()) + 1).float()
        return Problem(x, earned, earned)

    return made


def _wheel(delta: float) -> Callable[[int, Generator], Problem]:
    """Points of the unit disc; the first action is safe, the others pay outside of radius δ.

    Within δ the first of five actions earns 1.2, the others 1; outside, the one of the point's
    quadrant earns 50. The standard deviation is 0.01. Riquelme et al. (2018), sec. 5.4.
    """

    def made(rounds: int, generator: Generator) -> Problem:
        angle = 2 * torch.pi * torch.rand(rounds, generator=generator)
        radius = torch.rand(rounds, generator=generator).sqrt()
        x = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        means = torch.tensor([1.2, 1, 1, 1, 1]).repeat(rounds, 1)
        outside = (radius > delta).nonzero()[:, 0]
        quadrant = 2 * (x[:, 1] > 0).long() + (x[:, 0] > 0).long()
        means[outside, 1 + quadrant[outside]] = 50.0
        noise = 0.01 * torch.randn(means.shape, generator=generator)
        return Problem(x, means / 50, (means + noise) / 50)

    return made


PROBLEMS = {
    "mushroom": Kind(_mushroom, 2000),
    "statlog": Kind(_classes("statlog"), 2000),
    "adult": Kind(_classes("adult"), 2000),
    "wheel-0.5": Kind(_wheel(0.5), 4000),
    "wheel-0.9": Kind(_wheel(0.9), 4000),
    "wheel-0.99": Kind(_wheel(0.99), 4000),
}
"""The problems of Riquelme et al. (2018) whose data are free, with fewer rounds."""

_READ = {"mushroom": bandit.mushroom, "statlog": bandit.shuttle, "adult": bandit.adult}


@cache
def _of(name: str) -> tuple[Floats, Numbers]:
    return _READ[name]()


def _drawn(
    data: tuple[Floats, Numbers], rounds: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """The first `rounds` rows of a random order."""
    x, y = data
    rows = torch.randperm(len(y), generator=generator)[:rounds].numpy()
    return torch.from_numpy(np.ascontiguousarray(x[rows])), torch.from_numpy(y[rows])
