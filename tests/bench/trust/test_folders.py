"""Flipped bits and kills in small numbers, and that the benchmark itself would see a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import bench

from bayesrule.training.files import Files
from benchmarks.trust import folders


def test_flips_and_kills_are_counted(tmp_path: Path) -> None:
    out = tmp_path / "folders.json"
    said = bench("folders", "--flips", "12", "--kills", "2", "--out", out)
    assert said.code == 0, said.err
    assert "12 flipped bits" in said.out
    found = json.loads(out.read_text())
    flips, kills = found["flips"], found["kills"]
    assert flips["detected"] + flips["harmless"] == flips["number"] == 12
    assert flips["missed"] == 0
    assert kills["kills"] == 2
    assert kills["bit_equal"] == kills["runs"] >= 1
    assert found["command"].startswith("python -m benchmarks folders --flips 12")
    assert found["machine"]


def test_flips_that_nobody_looks_for_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "check", lambda *_: None)
    found = folders.flips(60)
    assert sum(one["missed"] for one in found.values()) > 5
