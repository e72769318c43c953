"""Q-learning by TAGI with Thompson draws, as in `examples/q_learning.py`, beside a DQN."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bayesrule.app.data.errors import DataError
from bayesrule.app.provenance import machine, versions
from benchmarks.explore.games import in_processes, refuse_unknown
from benchmarks.kept_rows import kept_rows

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
JUDGEMENTS, OF_EACH = 20, 20
BARS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0, "DeepSea-v0": 0.5}
"""The mean return from which a task counts as solved."""
AGENTS = ("tagi", "dqn")

# DQN's settings from RL Baselines3 Zoo for the first two; on Deep Sea half of the steps explore.
_DQN: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        **{"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000},
        **{"learning_starts": 1000, "target_update_interval": 10, "train_freq": 256},
        **{"gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04},
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "LunarLander-v3": {
        **{"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000},
        **{"learning_starts": 0, "target_update_interval": 250, "train_freq": 4},
        **{"gradient_steps": -1, "exploration_fraction": 0.12, "exploration_final_eps": 0.1},
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "DeepSea-v0": {
        **{"learning_rate": 1e-3, "batch_size": 32, "buffer_size": 50_000},
        **{"learning_starts": 100, "target_update_interval": 20, "train_freq": 1},
        **{"gradient_steps": 1, "exploration_fraction": 0.5, "exploration_final_eps": 0.05},
        "policy_kwargs": {"net_arch": [50]},
    },
}


@dataclass(frozen=True)
class Plan:
    """What all games share; without `steps`, those of the settings apply."""

    steps: int | None = None
    size: int = 20
    settings: dict[str, float] = field(default_factory=dict)
    """What differs from the example's settings."""


@dataclass(frozen=True)
class Game:
    """One agent on one environment with one seed."""

    env: str
    agent: str
    seed: int


def run(
    envs: Sequence[str],
    agents: Sequence[str],
    *,
    seeds: Sequence[int],
    plan: Plan,
    jobs: int = 1,
    known: Sequence[Row] = (),
    keep: Callable[[Row], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """All runs that are not `known` yet; `keep` gets the whole result after each."""
    check(envs, agents)
    rows = {_game(row): row for row in known}
    wanted = [Game(env, agent, seed) for env in envs for agent in agents for seed in seeds]
    missing = [game for game in wanted if game not in rows]
    for row in in_processes(play, missing, plan, jobs):
        rows[_game(row)] = row
        progress(line(row))
        keep(document(plan, rows.values()))
    return document(plan, rows.values())


def check(envs: Sequence[str], agents: Sequence[str]) -> None:
    """Refuses unknown names, and missing packages."""
    refuse_unknown("environment", envs, BARS)
    refuse_unknown("agent", agents, AGENTS)
    packages = {"gymnasium": "explore", "stable_baselines3": "explore-peers"}
    for package, extra in list(packages.items())[: 2 if "dqn" in agents else 1]:
        if importlib.util.find_spec(package) is None:
            raise DataError(f"This needs the package '{package}': pip install 'bayesrule[{extra}]'")


def check_settings(settings: Mapping[str, float]) -> None:
    """Refuses settings that are not numbers or that the example does not have."""
    known = asdict(example().Settings())
    numbers = [name for name, value in known.items() if isinstance(value, int | float)]
    refuse_unknown("setting", list(settings), numbers)


def play(game: Game, plan: Plan) -> Row:
    """One run: the returns of all episodes, and of evaluations now and then."""
    torch.set_num_threads(1)
    log = {"tagi": _tagi, "dqn": _dqn}[game.agent](game, plan)
    returns = [value for _, value in log["episodes"]]
    found = next((k for k, value in enumerate(returns) if value >= BARS[game.env]), None)
    return {
        **asdict(game),
        "steps": log["steps"],
        "final": log["judged"][-1][1],
        "last_episodes": statistics.fmean(returns[-50:]),
        "first_episode_at_bar": found,
        "judged": log["judged"],
        "settings": log["settings"],
        "seconds": round(log["seconds"], 1),
    }


@cache
def example() -> Any:
    """`examples/q_learning.py` as a module."""
    name, file = "q_learning_example", ROOT / "examples" / "q_learning.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _tagi(game: Game, plan: Plan) -> Row:
    known = example().SETTINGS[game.env]
    settings = replace(known, **{"steps": plan.steps or known.steps, **_typed(plan, known)})
    how = {"seed": game.seed, "size": plan.size, "judgements": JUDGEMENTS, "of_each": OF_EACH}
    log = example().train(game.env, settings, progress=lambda _: None, **how)
    return {**asdict(log), "steps": settings.steps, "settings": asdict(settings)}


def _typed(plan: Plan, known: Any) -> dict[str, Any]:
    return {name: type(getattr(known, name))(value) for name, value in plan.settings.items()}


def _dqn(game: Game, plan: Plan) -> Row:
    from stable_baselines3 import DQN
    from stable_baselines3.common.monitor import Monitor

    log, steps = example().Log(), plan.steps or example().SETTINGS[game.env].steps
    env, other = (example().make(game.env, plan.size, game.seed) for _ in range(2))
    env = Monitor(env)
    model = DQN("MlpPolicy", env, seed=game.seed, device="cpu", **_DQN[game.env])

    def judge(seen: dict[str, Any], _: Any) -> bool:
        if model.num_timesteps * JUDGEMENTS >= (len(log.judged) + 1) * steps:
            log.judged.append((model.num_timesteps, _judged(model, other)))
        return True

    begun = time.time()
    model.learn(steps, callback=judge)
    log.seconds = time.time() - begun
    log.episodes = list(enumerate(env.get_episode_rewards()))
    return {**asdict(log), "steps": steps, "settings": _DQN[game.env]}


def _judged(model: Any, env: Any) -> float:
    """The mean return of episodes without exploration."""

    def act(x: Any) -> int:
        return int(model.predict(x.numpy(), deterministic=True)[0])

    return statistics.fmean(example().episode(env, act, seed=10**9 + k) for k in range(OF_EACH))


def _game(row: Row) -> Game:
    return Game(row["env"], row["agent"], row["seed"])


def summary(rows: Iterable[Row]) -> list[Row]:
    """By environment and agent: the mean return at the end, and how many seeds reach the bar."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["env"], row["agent"]), []).append(row)
    return [_summed(env, agent, own) for (env, agent), own in found.items()]


def _summed(env: str, agent: str, rows: list[Row]) -> Row:
    final = sorted(row["final"] for row in rows)
    return {
        "env": env,
        "agent": agent,
        "seeds": len(rows),
        "steps": rows[0]["steps"],
        "solved": sum(value >= BARS[env] for value in final),
        "median": statistics.median(final),
        "least": final[0],
        "seconds": statistics.fmean(row["seconds"] for row in rows),
    }


def document(plan: Plan, rows: Iterable[Row]) -> Row:
    """The result as json."""
    rows = sorted(rows, key=lambda row: (row["env"], row["agent"], row["seed"]))
    return {
        "benchmark": "qlearning",
        "plan": asdict(plan),
        "bars": BARS,
        "results": summary(rows),
        "rows": rows,
        "versions": versions(),
        "machine": machine(),
    }


def read(file: Path, plan: Plan) -> list[Row]:
    """The runs in an earlier result."""
    return kept_rows(file, "qlearning", asdict(plan), rows="rows", key=_game)


def line(row: Row) -> str:
    """A run in words."""
    return (
        f"{row['env']}, {row['agent']}, seed {row['seed']}: {row['final']:.4g} at the end, "
        f"{row['seconds']:.0f} s"
    )
