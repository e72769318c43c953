"""Runs of Q-learning: how they are summed up, kept and refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.explore import q_learning
from tests.calling import bench, only_line

pytest.importorskip("gymnasium")
WORDS = ["qlearning", "--envs", "DeepSea-v0", "--size", "4", "--steps", "150", "--agents", "tagi"]


def _row(seed: int, final: float) -> dict[str, Any]:
    place = {"env": "CartPole-v1", "agent": "tagi", "seed": seed}
    return {**place, "final": final, "steps": 100, "seconds": 2.0}


def test_seeds_at_the_bar_are_counted() -> None:
    [found] = q_learning.summary([_row(0, 475.0), _row(1, 500.0), _row(2, 474.9)])
    assert (found["solved"], found["seeds"]) == (2, 3)
    assert (found["median"], found["least"]) == (475.0, 474.9)


def test_kept_runs_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "q.json"
    more = ["--seeds", "2", "--settings", "nets=3,noise=0.2", "--out", str(file)]
    assert bench(*WORDS, *more).code == 0
    found = json.loads(file.read_text())
    assert [row["seed"] for row in found["rows"]] == [0, 1]
    assert found["rows"][0]["settings"]["nets"] == 3
    assert found["plan"]["settings"] == {"nets": 3.0, "noise": 0.2}
    monkeypatch.setattr(q_learning, "play", None)
    assert bench(*WORDS, *more).code == 0
    assert "noise" in only_line(bench(*WORDS, "--out", file))


def test_a_dqn_learns_on_the_same_terms() -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("needs stable-baselines3")
    plan = q_learning.Plan(steps=200, size=3)
    row = q_learning.play(q_learning.Game("DeepSea-v0", "dqn", 0), plan)
    assert row["steps"] == 200
    assert len(row["judged"]) == q_learning.JUDGEMENTS
    assert row["judged"][-1][0] == 200


def test_what_there_is_not_is_refused() -> None:
    assert "'tagy'" in only_line(bench(*WORDS[:-1], "tagy"))
    assert "'nois'" in only_line(bench(*WORDS, "--settings", "nois=1"))
    assert "NAME=NUMBER" in only_line(bench(*WORDS, "--settings", "noise"))
    assert "'hidden'" in only_line(bench(*WORDS, "--settings", "hidden=3"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "bayesrule[explore]" in only_line(bench(*WORDS))
