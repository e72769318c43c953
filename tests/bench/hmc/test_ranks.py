"""Whether the truth is ranked evenly among draws of NUTS."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import bench

import bayesrule as br
from benchmarks.hmc import ranks
from benchmarks.hmc.ranks import Plan, evenness


def test_ranks_that_are_not_even_are_seen() -> None:
    even = torch.rand(200, generator=torch.Generator().manual_seed(0))
    assert evenness(even.tolist()) > 0.01
    assert evenness(even.square().tolist()) < 1e-4


@pytest.mark.skipif(find_spec("nutpie") is None, reason="needs nutpie")
def test_a_row_has_the_rank_of_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    short = partial(br.hmc, draws=20, warmup=50, chains=1, compile=False, target_acceptance=0.7)
    monkeypatch.setattr(br, "hmc", short)
    row = ranks.row(0, Plan(sets=1))
    for part in ("inside", "outside"):
        assert row[part]["rank"] * 20 == pytest.approx(round(row[part]["rank"] * 20))
        assert 0.0 <= row[part]["f90"] <= 1.0


@pytest.mark.parametrize(("power", "code"), [(1, 0), (3, 1)])
def test_the_command_says_whether_ranks_are_even(
    power: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(set: int, plan: Plan) -> dict[str, Any]:
        figures = {"rank": ((set + 0.5) / plan.sets) ** power, "f90": 0.9, "90": 0.91}
        return {"divergences": 1, "inside": figures, "outside": figures}

    monkeypatch.setattr(ranks, "row", row)
    out = tmp_path / "ranks.json"
    said = bench("ranks", "--sets", "40", "--out", out)
    assert said.code == code
    assert "90.0 %" in said.out
    found = json.loads(out.read_text())["summary"]
    assert found["divergences"] == found["sets"] == 40
    assert (found["inside"]["p_value"] > 0.9) == (code == 0)
