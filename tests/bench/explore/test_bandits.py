"""Games: settings are chosen on seeds of their own, kept games are not played again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bayesrule.training.checkpoint import CheckpointError
from benchmarks.explore import bandits
from benchmarks.explore.settings import AGENTS
from tests.calling import bench, only_line

WORDS = ["bandits", "--sets", "wheel-0.5", "--rounds", "60", "--tuning-seeds", "1", "--seeds", "2"]


def _row(agent: str, attempt: int, seed: int, regret: float) -> dict[str, Any]:
    return {"set": "statlog", "agent": agent, "attempt": attempt, "seed": seed, "regret": regret}


ROWS = [
    *(_row("tagi", attempt, 100 + seed, 9.0 - attempt) for attempt in range(3) for seed in (0, 1)),
    *(_row("linear", attempt, 100, 5.0 + attempt) for attempt in range(2)),
    *(_row("tagi", 2, seed, 4.0 + seed) for seed in range(3)),
    *(_row("tagi", 0, seed, 0.0) for seed in range(3)),
    *(_row("linear", 0, seed, 6.0 + 2 * seed) for seed in range(3)),
]


def test_settings_are_chosen_without_test_seeds() -> None:
    assert bandits.chosen(ROWS) == {("statlog", "tagi"): 2, ("statlog", "linear"): 0}
    assert bandits.tested(ROWS)["statlog", "tagi"] == {0: 4.0, 1: 5.0, 2: 6.0}


def test_agents_are_compared_seed_by_seed() -> None:
    [tagi] = [one for one in bandits.summary(ROWS) if one["agent"] == "tagi"]
    assert (tagi["mean"], tagi["seeds"]) == (5.0, 3)
    assert tagi["error"] == pytest.approx(1 / math.sqrt(3))
    assert tagi["beside"] == {"linear": (-3.0, pytest.approx(1 / math.sqrt(3)))}


def test_all_agents_have_as_many_tries() -> None:
    assert {len(entry.tries) for entry in AGENTS.values()} == {6}


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_plays(agent: str) -> None:
    row = bandits.play(bandits.Game("wheel-0.5", agent, 0, 0), bandits.Plan(rounds=60))
    assert row["rounds"] == 60
    assert 0 < row["regret"] < 200
    again = bandits.play(bandits.Game("wheel-0.5", agent, 0, 0), bandits.Plan(rounds=60))
    assert again["regret"] == row["regret"]


def test_linear_thompson_learns() -> None:
    row = bandits.play(bandits.Game("wheel-0.5", "linear", 5, 0), bandits.Plan(rounds=1000))
    assert row["last_half"] < 0.7 * row["regret"] < 35


def test_kept_games_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bandits.json"
    said = bench(*WORDS, "--agents", "linear", "--out", file)
    assert said.code == 0
    assert "linear" in said.out
    found = json.loads(file.read_text())
    assert len(found["rows"]) == 6 + 2
    monkeypatch.setattr(bandits, "play", None)
    assert bench(*WORDS, "--agents", "linear", "--out", file).code == 0
    assert json.loads(file.read_text())["results"] == found["results"]
    with pytest.raises(CheckpointError, match="rounds=60"):
        bandits.read(file, bandits.Plan())


def test_unknown_names_are_refused() -> None:
    assert "'linera'" in only_line(bench(*WORDS, "--agents", "linera"))
    assert "'whel'" in only_line(bench("bandits", "--sets", "whel"))
