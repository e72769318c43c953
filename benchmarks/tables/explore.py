"""The tables of docs/explore.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.explore.settings import AGENTS
from benchmarks.tables.calls import calls


def bandits(result: dict[str, Any]) -> str:
    """Regret of each agent, and of the library's best beside linear Thompson and greedy."""
    found = {(one["set"], one["agent"]): one for one in result["results"]}
    sets = list(dict.fromkeys(name for name, _ in found))
    rounds = {row["set"]: row["rounds"] for row in result["rows"]}
    seeds = min(one["seeds"] for one in found.values())
    lines = [
        f"Regret in per cent of what chance would have, means over {seeds} seeds and their "
        "standard errors, with the best of six settings of each agent on two other seeds; bold is "
        "the least.",
        "",
        "| agent | " + " | ".join(f"{name}, {rounds[name]:,} rounds" for name in sets) + " |",
        "|---|" + "---|" * len(sets),
    ]
    least = {
        name: min(one["mean"] for (of, _), one in found.items() if of == name) for name in sets
    }
    for agent in AGENTS:
        cells = [_regret(found.get((name, agent)), least[name]) for name in sets]
        lines.append(f"| {agent} | " + " | ".join(cells) + " |")
    lines += ["", *_beside(found, sets), "", calls([result])]
    return "\n".join(lines)


def _regret(one: dict[str, Any] | None, least: float) -> str:
    if one is None:
        return "–"
    shown = f"{one['mean']:.1f} ± {one['error']:.1f}"
    return f"**{shown}**" if one["mean"] == least else shown


def _beside(found: dict[tuple[str, str], dict[str, Any]], sets: list[str]) -> list[str]:
    """The library's best method on each problem, compared with linear Thompson and greedy."""
    lines = [
        "Seed by seed, the best of the library's methods that were played, less the others:",
        "",
        "| problem | method | less linear Thompson | less the greedy net |",
        "|---|---|---|---|",
    ]
    for name in sets:
        own = [one for (of, agent), one in found.items() if of == name and AGENTS[agent].own]
        if own:
            best = min(own, key=lambda one: one["mean"])
            pairs = (best["beside"][other] for other in ("linear", "greedy"))
            cells = [f"{mean:+.1f} ± {error:.1f}" for mean, error in pairs]
            lines.append(f"| {name} | {best['agent']} | " + " | ".join(cells) + " |")
    return lines


def q_learning(*results: dict[str, Any]) -> str:
    """On how many seeds each agent reaches the bar after the same number of steps."""
    lines = [
        "| environment | bar | agent | steps | seeds at the bar | median return | least |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for one in result["results"]:
            size = f", N = {result['plan']['size']}" if one["env"] == "DeepSea-v0" else ""
            cells = [
                one["env"] + size,
                f"{result['bars'][one['env']]:g}",
                one["agent"],
                f"{one['steps']:,}",
                f"{one['solved']} of {one['seeds']}",
                f"{one['median']:.4g}",
                f"{one['least']:.4g}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", calls(list(results))])


PAGE: dict[str, tuple[list[str], Callable[..., str]]] = {
    "bandits": (["bandits.json"], bandits),
    "q-learning": (
        [f"q_learning_{name}.json" for name in ("sea", "cartpole", "lander")],
        q_learning,
    ),
}
"""The tables of docs/explore.md: the results they are made from, and what makes them."""
