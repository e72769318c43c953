"""Dropout beside the same net without it: how its share is chosen, figures and the table."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.beyond import dropout
from benchmarks.beyond.dropout import Data
from tests.calling import bench


def _rows(name: str, split: int) -> Data:
    generator = torch.Generator().manual_seed(split)
    x = torch.randn(160, 4, generator=generator)
    if name == dropout.IMAGES:
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    else:
        y = x[:, :1].sin() + 0.3 * torch.randn(160, 1, generator=generator)
    return Data(x[:100], y[:100], x[100:], y[100:], 2.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and epochs under the names of real sets."""
    monkeypatch.setattr(dropout, "_data", _rows)
    for name in ("TABLE", "PICTURES"):
        kind = dataclasses.replace(getattr(dropout, name), hidden=(8,), epochs=3)
        monkeypatch.setattr(dropout, name, kind)


def test_the_share_is_that_of_the_most_likely_held_out_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def one(name: str, split: int, method: str, drop: float, data: Data) -> dict[str, float]:
        asked.append((split, method, drop, len(data.x), len(data.asked)))
        return {"log_likelihood": -abs(drop - 0.1), "error": 1.0, "calibration_error": 0.1}

    monkeypatch.setattr(dropout, "_one", one)
    found = dropout.run(["boston"], 2, [0.05, 0.1, 0.2], progress=lambda line: None)
    assert found["drop"] == {"boston": 0.1}
    # Twenty of the hundred training rows are held out, and the test rows are not looked at.
    assert asked[:3] == [(0, "dropout", drop, 80, 20) for drop in (0.05, 0.1, 0.2)]
    assert asked[3:] == [
        (split, method, 0.1, 100, 60) for split in (0, 1) for method in dropout.METHODS
    ]


def test_held_out_rows_are_the_last_fifth() -> None:
    data = _rows("boston", 0)
    held = data.held_out()
    assert torch.equal(torch.cat([held.x, held.asked]), data.x)
    assert torch.equal(torch.cat([held.y, held.answers]), data.y)


def test_figures_of_numbers_are_in_units_of_the_targets() -> None:
    data = _rows("boston", 0)
    wide = dataclasses.replace(data, scale=20.0)
    first, second = (dropout._one("boston", 0, "map", 0.1, one) for one in (data, wide))
    assert second["error"] == pytest.approx(10.0 * first["error"])
    gap = first["log_likelihood"] - second["log_likelihood"]
    assert gap == pytest.approx(math.log(10.0), rel=1e-6)
    assert second["calibration_error"] == first["calibration_error"]


def test_both_kinds_of_sets_stand_in_one_table(tmp_path: Path) -> None:
    file = tmp_path / "dropout.json"
    words = ["dropout", "--sets", "boston,fashion_mnist", "--splits", "1", "--drops", "0.1"]
    said = bench(*words, "--out", file)
    found = json.loads(file.read_text())
    assert said.code == int(not dropout.better(found))
    for name in ("boston", "fashion_mnist"):
        for method in dropout.METHODS:
            own = found["means"][name][method]
            assert f"{own['log_likelihood']:.3f}" in said.out
            assert 0.0 <= own["calibration_error"] <= 1.0


@pytest.mark.parametrize(
    ("likely", "missed", "good"), [(-1.0, 0.05, True), (-3.0, 0.05, False), (-1.0, 0.2, False)]
)
def test_dropout_has_to_be_ahead_in_both(likely: float, missed: float, good: bool) -> None:
    plain = {"log_likelihood": -2.0, "calibration_error": 0.1}
    dropped = {"log_likelihood": likely, "calibration_error": missed}
    assert dropout.better({"means": {"boston": {"map": plain, "dropout": dropped}}}) is good
