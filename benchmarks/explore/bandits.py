"""Agents on contextual bandits: settings from tuning seeds, regret on test seeds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bayesrule.app.provenance import machine, versions
from benchmarks.explore.games import in_processes, refuse_unknown
from benchmarks.explore.problems import PROBLEMS, make
from benchmarks.explore.settings import AGENTS
from benchmarks.kept_rows import kept_rows

TUNING = 100
"""The first of the seeds that settings are chosen on."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What all games share; `rounds` is None for the problem's own number."""

    rounds: int | None = None


@dataclass(frozen=True)
class Game:
    """One agent with one of its settings on one problem and seed."""

    set: str
    agent: str
    attempt: int
    seed: int


def run(
    sets: Sequence[str],
    agents: Sequence[str],
    *,
    seeds: int,
    tuning_seeds: int,
    plan: Plan,
    jobs: int = 1,
    known: Sequence[Row] = (),
    keep: Callable[[Row], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Tries all settings on the tuning seeds, then plays the best of each on the test seeds.

    Games that are `known` are not repeated; `keep` gets the whole result now and then.
    """
    check(sets, agents)
    rows = {_game(row): row for row in known}
    places = [(name, agent) for name in sets for agent in agents]
    tuning = range(TUNING, TUNING + tuning_seeds)
    tries = [
        Game(*place, attempt, seed)
        for place in places
        for attempt in range(len(AGENTS[place[1]].tries))
        for seed in tuning
    ]
    for games in (tries, None):
        if games is None:
            best = chosen(rows.values())
            games = [Game(*place, best[place], seed) for place in places for seed in range(seeds)]
        missing = [game for game in games if game not in rows]
        for row in in_processes(play, missing, plan, jobs):
            rows[_game(row)] = row
            progress(line(row))
            keep(document(plan, rows.values()))
    return document(plan, rows.values())


def check(sets: Sequence[str], agents: Sequence[str]) -> None:
    """Refuses unknown problems and agents."""
    refuse_unknown("problem", sets, PROBLEMS)
    refuse_unknown("agent", agents, AGENTS)


def play(game: Game, plan: Plan) -> Row:
    """One game: the regret over all rounds, in per cent of that of random actions."""
    torch.set_num_threads(1)
    entry = AGENTS[game.agent]
    options = entry.tries[game.attempt]
    problem = make(game.set, game.seed, plan.rounds)
    agent, begun = entry.make(problem, game.seed, **options), time.perf_counter()
    regrets, rewards = problem.regrets.tolist(), problem.rewards.tolist()
    lost = []
    for context, regret, reward in zip(problem.contexts, regrets, rewards, strict=True):
        action = agent.choose(context)
        agent.observe(context, action, reward[action])
        lost.append(regret[action])
    by_chance = problem.regret_by_chance
    return {
        **asdict(game),
        "options": options,
        "rounds": len(lost),
        "regret": 100.0 * sum(lost) / by_chance,
        "last_half": 200.0 * sum(lost[len(lost) // 2 :]) / by_chance,
        "seconds": round(time.perf_counter() - begun, 2),
    }


def _game(row: Row) -> Game:
    return Game(row["set"], row["agent"], row["attempt"], row["seed"])


def chosen(rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """The setting of the least mean regret on the tuning seeds, for each problem and agent."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        if row["seed"] >= TUNING:
            place = found.setdefault((row["set"], row["agent"]), {})
            place.setdefault(row["attempt"], []).append(row["regret"])
    return {
        place: min(tries, key=lambda attempt: (statistics.fmean(tries[attempt]), attempt))
        for place, tries in found.items()
    }


def tested(rows: Iterable[Row]) -> dict[tuple[str, str], dict[int, float]]:
    """The regret of each test seed with the chosen setting, for each problem and agent."""
    rows = list(rows)
    best = chosen(rows)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        place = row["set"], row["agent"]
        if row["seed"] < TUNING and best.get(place) == row["attempt"]:
            found.setdefault(place, {})[row["seed"]] = row["regret"]
    return found


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, NaN of a single one."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.fmean(values), error


def paired(mine: dict[int, float], other: dict[int, float]) -> tuple[float, float]:
    """The mean difference over common seeds, and its standard error."""
    return mean_and_error([mine[seed] - other[seed] for seed in mine if seed in other])


def summary(rows: Iterable[Row]) -> list[Row]:
    """Mean regret and its error by problem and agent, and differences from linear and greedy."""
    rows = list(rows)
    found, best = tested(rows), chosen(rows)
    return [_summed(name, agent, found, best[name, agent]) for name, agent in found]


def _summed(name: str, agent: str, found: dict[Any, dict[int, float]], attempt: int) -> Row:
    mine = found[name, agent]
    mean, error = mean_and_error(list(mine.values()))
    beside = {
        other: paired(mine, found[name, other])
        for other in ("linear", "greedy")
        if other != agent and set(mine) & set(found.get((name, other), ()))
    }
    return {
        **{"set": name, "agent": agent, "options": AGENTS[agent].tries[attempt]},
        **{"seeds": len(mine), "mean": mean, "error": error, "beside": beside},
    }


def document(plan: Plan, rows: Iterable[Row]) -> Row:
    """The result as json."""
    rows = sorted(rows, key=lambda row: (row["set"], row["agent"], row["attempt"], row["seed"]))
    return {
        "benchmark": "bandits",
        "plan": asdict(plan),
        "results": summary(rows),
        "rows": rows,
        "versions": versions(),
        "machine": machine(),
    }


def read(file: Path, plan: Plan) -> list[Row]:
    """The games in an earlier result, without those whose settings have changed since."""
    known = kept_rows(file, "bandits", asdict(plan), rows="rows", key=_game)
    return [row for row in known if _current(row)]


def _current(row: Row) -> bool:
    tries = AGENTS[row["agent"]].tries if row["agent"] in AGENTS else ()
    return row["attempt"] < len(tries) and tries[row["attempt"]] == row["options"]


def line(row: Row) -> str:
    """A game in words."""
    options = ", ".join(f"{name}={value:g}" for name, value in row["options"].items())
    return (
        f"{row['set']}, {row['agent']} ({options}), seed {row['seed']}: {row['regret']:.2f} % "
        f"in {row['seconds']:.1f} s"
    )
