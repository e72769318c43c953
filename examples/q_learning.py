"""Q-learning by TAGI with Thompson draws, in one file, for Gymnasium's environments.

    python examples/q_learning.py DeepSea-v0 --size 20 --out FOLDER

A draw from the posterior over action values is one hypothesis about the world; acting by it for a
whole episode explores far (Osband et al., 2019). Here the draws themselves learn. Each of `nets`
networks starts from a draw of the prior; TAGI conditions it on rewards with noise of its own, and
on the next value as that network believes it. A linear model that sees each reward once is then an
exact draw from the posterior (replay makes it approximate). The uncertainty of the next state is
not averaged away, as it would be if it were noise of the target. There are no gradients.

The folder holds a checkpoint, from which the same call resumes, the returns of episodes as json,
and their picture (dots; in red the mean over all nets, without exploration). Other environments are
CartPole-v1 and LunarLander-v3. Gymnasium comes with `pip install 'bayesrule[explore]'`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.report.axes import Axis, limits
from bayesrule.app.report.svg import Plot
from bayesrule.tensors import tree
from bayesrule.training.checkpoint import write_atomically
from bayesrule.training.models import mlp

try:
    import gymnasium
    from gymnasium import spaces
except ImportError:
    sys.exit("This example needs Gymnasium: pip install 'bayesrule[explore]'")

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.grid { stroke: #e6e6e6; fill: none; } .notch, .base { stroke: #999; fill: none; }
.tick.y { text-anchor: end; } .tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.episodes { fill: #9cc3e4; } .judged { fill: none; stroke: #d1301f; stroke-width: 2; }
"""


@dataclass(frozen=True)
class Settings:
    """The settings of the learner.

    `scale` multiplies rewards, so that values are about one in size; `noise` is
    the assumed standard deviation of a target, `second_look` the share of a step that is left once
    much was seen. A target sums the next `returns` rewards. Every `every` steps all nets learn from
    `batch` transitions each; the nets that make the targets lag behind by about `lag` such updates.
    For an episode, the weights that decide are off the mean by `spread` times a draw of their
    posterior: more than one, because transitions that are seen again make it too certain.
    """

    steps: int = 100_000
    nets: int = 10
    hidden: tuple[int, ...] = (64,)
    discount: float = 0.99
    returns: int = 5
    scale: float = 0.01
    noise: float = 0.03
    gain: float = 1.0
    spread: float = 3.0
    second_look: float = 0.01
    batch: int = 32
    every: int = 2
    lag: int = 500
    memory: int = 50_000
    start: int = 500


_SEA = Settings(steps=40_000, hidden=(), scale=1.0, noise=0.1, second_look=0.1, lag=20, every=1)
SETTINGS = {
    "CartPole-v1": Settings(),
    "LunarLander-v3": replace(
        Settings(steps=350_000, nets=5, hidden=(128,), noise=0.1, second_look=0.1),
        batch=128,
        every=4,
        memory=200_000,
    ),
    "DeepSea-v0": replace(_SEA, start=100, returns=1, spread=0.0),
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
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = int(action) == self.right[self.row][self.column]
        treasure = right and self.column == self.size - 1
        reward = (1.0 if treasure else 0.0) - (0.01 / self.size if right else 0.0)
        self.column = min(max(self.column + (1 if right else -1), 0), self.size - 1)
        self.row += 1
        return self._observation(), reward, self.row == self.size, False, {}

    def _observation(self) -> Any:
        """The cell, one-hot, scaled so that weights of the usual first size make values near 1."""
        cell = torch.zeros(self.size * self.size)
        if self.row < self.size:
            cell[self.row * self.size + self.column] = float(self.size)
        return cell.numpy()


gymnasium.register("DeepSea-v0", entry_point=DeepSea)


class Memory:
    """The last transitions, with separate reward noise for each net."""

    def __init__(self, size: int, observed: int, nets: int) -> None:
        self.size, self.seen = size, 0
        self.x, self.after = torch.zeros(size, observed), torch.zeros(size, observed)
        self.action = torch.zeros(size, dtype=torch.long)
        self.reward, self.discount = torch.zeros(size), torch.zeros(size)
        self.noise = torch.zeros(size, nets)

    def add(self, **transition: Tensor | float) -> None:
        for name, value in transition.items():
            getattr(self, name)[self.seen % self.size] = value
        self.seen += 1

    def rows(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(min(self.seen, self.size), shape, generator=generator)


class Agent:
    """Nets that are draws from the posterior of action values, and their memory."""

    def __init__(self, observed: int, actions: int, settings: Settings, seed: int) -> None:
        self.settings, self.actions, self.steps = settings, actions, 0
        net = mlp(observed, actions, settings.hidden, seed=seed)
        likelihood = br.GaussianLikelihood(noise=settings.noise)
        rule = br.Conditioning(second_look=settings.second_look)
        learner = br.tagi(net, likelihood, num_data=1, gain=settings.gain, rule=rule)
        self.stack = br.execution.Stacked(learner, settings.nets)
        self.state = self.stack.init(range(seed * settings.nets, (seed + 1) * settings.nets))
        # A copy of all nets' weights, which follows them.
        self.target = {name: value.clone() for name, value in self.state.posterior.mean.items()}
        # What the leading net's weights are off their mean, in standard deviations.
        self.noise = {name: torch.zeros_like(value[0]) for name, value in self.target.items()}
        self.memory = Memory(settings.memory, observed, settings.nets)
        self.generator = torch.Generator().manual_seed(seed)
        self.leader = 0
        # Steps of this episode whose rewards are not summed up yet.
        self.waiting: list[dict[str, Any]] = []

    def values(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """The values of all actions by all nets, (nets, n, actions), for x (nets, n, d)."""
        layers = list(weights.values())
        for number, (weight, bias) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
            x = torch.baddbmm(bias[:, None], x.relu() if number else x, weight.mT)
        return x

    def follow(self) -> None:
        """Choose a net and a draw of its weights, which decide until the episode ends."""
        self.waiting.clear()
        self.leader = int(torch.randint(self.settings.nets, (), generator=self.generator))
        for value in self.noise.values() if self.settings.spread else ():
            value.normal_(generator=self.generator)

    @torch.no_grad()
    def act(self, x: Tensor) -> int:
        """The best action by the leading net's draw."""
        belief, leader, spread = self.state.posterior, self.leader, self.settings.spread
        weights = {name: mean[leader, None] for name, mean in belief.mean.items()}
        for name, variance in belief.variance().items() if spread else ():
            off = variance[leader].sqrt() * self.noise[name]
            weights[name] = weights[name].add(off, alpha=spread)
        return int(self.values(weights, x[None, None]).argmax())

    @torch.no_grad()
    def act_by_all(self, x: Tensor) -> int:
        """The best action by the mean over all nets, used for evaluation."""
        x = x.expand(self.settings.nets, 1, -1)
        return int(self.values(dict(self.state.posterior.mean), x).mean((0, 1)).argmax())

    def observe(self, x: Tensor, action: int, reward: float, after: Tensor, ended: bool) -> None:
        """Remember a transition, and learn if it is time to."""
        s = self.settings
        self.waiting.append({"x": x, "action": action, "reward": 0.0, "discount": 1.0})
        for one in self.waiting:
            one["reward"] += one["discount"] * s.scale * reward
            one["discount"] *= s.discount
        complete = len(self.waiting) if ended else int(len(self.waiting) == s.returns)
        for one in self.waiting[:complete]:
            one["discount"] *= not ended
            noise = s.noise * torch.randn(s.nets, generator=self.generator)
            self.memory.add(**one, after=after, noise=noise)
        del self.waiting[:complete]
        self.steps += 1
        if self.steps >= s.start and self.steps % s.every == 0:
            self._learn()

    @torch.no_grad()
    def _learn(self) -> None:
        s, memory = self.settings, self.memory
        rows = memory.rows((s.nets, s.batch), self.generator)
        after = memory.after[rows]
        # Current nets choose the action, so that errors of the lagging nets are not sought out.
        chosen = self.values(dict(self.state.posterior.mean), after).argmax(2, keepdim=True)
        best = self.values(self.target, after).gather(2, chosen).squeeze(2)
        noise = memory.noise[rows, torch.arange(s.nets)[:, None]]
        y = memory.reward[rows] + noise + memory.discount[rows] * best
        # Only the action that was taken has a target.
        targets = torch.full((*y.shape, self.actions), torch.nan)
        targets = targets.scatter(2, memory.action[rows][..., None], y[..., None])
        self.state, _ = self.stack.step(self.state, (memory.x[rows], targets), donate=True)
        for name, value in self.state.posterior.mean.items():
            self.target[name].lerp_(value, 1.0 / s.lag)

    def tensors(self) -> dict[str, Tensor]:
        """Everything needed to resume, by name."""
        parts = {"state": self.state, "target": self.target, "memory": vars(self.memory)}
        counts = torch.tensor([self.steps, self.state.step, self.memory.seen])
        counters = {"counts": counts, "generator": self.generator.get_state()}
        return tree.tensors(parts) | counters

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Resume from the result of `tensors`."""
        steps, learned, seen = saved["counts"].tolist()
        state = tree.rebuild(self.state, lambda name, old: saved.get(f"state/{name}", old))
        self.state, self.steps = replace(state, step=learned), steps
        self.target = {name: saved[f"target/{name}"] for name in self.target}
        for name in tree.tensors(vars(self.memory)):
            setattr(self.memory, name, saved[f"memory/{name}"])
        self.memory.seen = seen
        self.generator.set_state(saved["generator"])


@dataclass
class Log:
    """Returns of episodes and of evaluations, each with the step at which it ended."""

    episodes: list[tuple[int, float]] = field(default_factory=list)
    judged: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


def episode(
    env: Any, act: Callable[[Tensor], int], after: Callable[..., None] | None = None, *, seed: int
) -> float:
    """The return of one episode; `after` gets each transition."""
    observation, _ = env.reset(seed=seed)
    x, earned, over = torch.as_tensor(observation, dtype=torch.float32), 0.0, False
    while not over:
        action = act(x)
        observation, reward, ended, cut, _ = env.step(action)
        following = torch.as_tensor(observation, dtype=torch.float32)
        earned, over = earned + float(reward), ended or cut
        if after is not None:
            after(x, action, float(reward), following, ended)
        x = following
    return earned


def make(name: str, size: int, seed: int) -> Any:
    """An environment; Deep Sea's has a size, and which actions go right follows from the seed."""
    return gymnasium.make(name, **({"size": size, "seed": seed} if name == "DeepSea-v0" else {}))


def train(
    name: str,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    size: int = 10,
    judgements: int = 20,
    of_each: int = 10,
    out: Path | None = None,
    progress: Callable[[str], None] = print,
) -> Log:
    """Learn to act; now and then some episodes evaluate the mean over all nets."""
    s = settings or SETTINGS[name]
    env, other = make(name, size, seed), make(name, size, seed)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n), s, seed)
    call = {**asdict(s), "env": name, "seed": seed, "size": size}
    log = resumed(out, agent, call)
    begun = time.time() - log.seconds
    while agent.steps < s.steps:
        agent.follow()
        # The seed of an episode follows from its number, so that a checkpoint need not hold it.
        number = seed * 1_000_000 + len(log.episodes)
        earned = episode(env, agent.act, agent.observe, seed=number)
        log.episodes.append((agent.steps, earned))
        if agent.steps * judgements < (len(log.judged) + 1) * s.steps:
            continue
        found = [episode(other, agent.act_by_all, seed=10**9 + k) for k in range(of_each)]
        log.judged.append((agent.steps, sum(found) / of_each))
        log.seconds = time.time() - begun
        recent = [value for _, value in log.episodes[-50:]]
        means = f"last episodes {sum(recent) / len(recent):.4g}, all nets {log.judged[-1][1]:.4g}"
        progress(f"{name}, seed {seed}, step {agent.steps:,}: {means}, {log.seconds:.0f} s")
        keep(out, agent, log, call)
    return log


def keep(out: Path | None, agent: Agent, log: Log, call: dict[str, Any]) -> None:
    """Write the checkpoint, the returns and their picture, if a folder is given."""
    if out is None:
        return
    known = {"call": call, "agent": agent.tensors(), "log": asdict(log)}
    torch.save(known, out / "checkpoint.partial")
    (out / "checkpoint.partial").replace(out / "checkpoint.pt")
    write_atomically(out / "picture.svg", picture(log).encode())
    write_atomically(out / "log.json", json.dumps(known["log"]).encode())


def resumed(out: Path | None, agent: Agent, call: dict[str, Any]) -> Log:
    """The log in the folder, with the agent restored from it; an empty log if there is none."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if out is None or not (out / "checkpoint.pt").exists():
        return Log()
    known = torch.load(out / "checkpoint.pt", weights_only=True)
    if known["call"] != call:
        sys.exit(f"'{out}' is of another call, so it is left as it is. Choose another --out.")
    agent.restore(known["agent"])
    return Log(**known["log"])


def picture(log: Log) -> str:
    """Returns of all episodes, and of the mean over all nets."""
    (x, y), (at, judged) = zip(*log.episodes, strict=True), zip(*log.judged, strict=True)
    plot = Plot(Axis("steps", *limits(x)), Axis("return", *limits(y, judged)), "", width=640.0)
    plot.points(x, y, kind="episodes", radius=1.5)
    plot.line(at, judged, kind="judged")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="340">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        f"{plot.render()}</svg>\n"
    )


def main(words: list[str] | None = None) -> None:
    """Learns as the command line says."""
    parser = argparse.ArgumentParser(description="Q-learning by TAGI with Thompson draws.")
    parser.add_argument("env", choices=SETTINGS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="(default: those of the settings)")
    parser.add_argument("--size", type=int, default=10, help="of Deep Sea (default: 10)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="checkpoint, returns, picture")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    settings = replace(SETTINGS[args.env], **({"steps": args.steps} if args.steps else {}))
    log = train(args.env, settings, seed=args.seed, size=args.size, out=args.out)
    print(f"The mean over all nets earns {log.judged[-1][1]:.4g} at the end.")


if __name__ == "__main__":
    main()
