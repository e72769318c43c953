"""The tables of docs/explore.md say what the results do."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import explore


def _one(name: str, agent: str, mean: float, beside: dict[str, Any]) -> dict[str, Any]:
    return {"set": name, "agent": agent, "mean": mean, "error": 0.25, "seeds": 3, "beside": beside}


def test_the_least_regret_is_bold_and_the_best_of_ours_stands_beside_the_others() -> None:
    pairs = {"linear": (-2.0, 0.5), "greedy": (1.0, 0.25)}
    result = {
        "results": [
            _one("statlog", "linear", 6.0, {}),
            _one("statlog", "tagi", 4.0, pairs),
            _one("statlog", "vogn", 5.0, {**pairs, "linear": (-1.0, 0.5)}),
        ],
        "rows": [{"set": "statlog", "rounds": 2000}],
        "command": "python -m benchmarks bandits",
        "machine": "a machine",
    }
    lines = explore.bandits(result).splitlines()
    assert "| agent | statlog, 2,000 rounds |" in lines
    assert "| tagi | **4.0 ± 0.2** |" in lines
    assert "| linear | 6.0 ± 0.2 |" in lines
    assert "| greedy | – |" in lines
    assert "| statlog | tagi | -2.0 ± 0.5 | +1.0 ± 0.2 |" in lines
    assert lines[-1] == "`python -m benchmarks bandits`, a machine."


def test_seeds_at_the_bar_are_shown() -> None:
    one = {"env": "DeepSea-v0", "agent": "tagi", "steps": 40_000, "solved": 9, "seeds": 10}
    result = {
        "results": [{**one, "median": 0.99, "least": 0.0}],
        "bars": {"DeepSea-v0": 0.5},
        "plan": {"size": 20},
        "command": "python -m benchmarks qlearning",
        "machine": "a machine",
    }
    row = "| DeepSea-v0, N = 20 | 0.5 | tagi | 40,000 | 9 of 10 | 0.99 | 0 |"
    assert row in explore.q_learning(result).splitlines()
