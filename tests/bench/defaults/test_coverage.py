"""Coverage by simulation: what is simulated, and what becomes of a training that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import bench, only_line
from torch import Tensor

import bayesrule as br
from benchmarks.defaults import coverage
from benchmarks.defaults.coverage import simulated


def test_rows_are_kept_with_their_figures(tmp_path: Path) -> None:
    out = tmp_path / "coverage.json"
    words = ["coverage", "--sets", "3", "--epochs", "3", "--out", out]
    said = bench(*words, "--methods", "vogn,laplace-kronecker")
    assert said.code == 0, said.err
    rows = json.loads(out.read_text())["results"]
    assert [row["method"] for row in rows] == ["vogn", "laplace-kronecker"]
    for row in rows:
        assert row["epochs"] == 3
        assert row["diverged"] == 0
        for part in ("inside", "outside"):
            assert 0.0 <= row[part]["50"] <= row[part]["90"] <= row[part]["95"] <= 1.0
            assert row[part]["rmse"] > 0.0
    assert "epochs=4" in only_line(bench(*words[:-3], "4", *words[-2:]))


def test_inputs_are_inside_and_outside_and_targets_are_as_noisy_as_is_said() -> None:
    sets = [simulated(seed, noise=0.3) for seed in range(30)]
    noise = torch.cat([y - f for one in sets for _, y, f in one.parts.values()])
    assert float(noise.std()) == pytest.approx(0.3, rel=0.05)
    for one in sets:
        assert float(one.data[0].abs().max()) <= coverage.RANGE
        assert float(one.parts["outside"][0].abs().min()) >= coverage.RANGE


def test_default_epochs_are_left_to_fit_and_the_reference_has_its_own() -> None:
    assert coverage.training("vogn", None) == {}
    assert coverage.training("vogn", 7) == {"epochs": 7}
    assert coverage.training("map-5000", 7)["epochs"] == 2500


def test_a_set_that_fails_is_counted_and_the_others_are_trained() -> None:
    sets = [simulated(seed, 0.1).data for seed in range(3)]

    def build(x: Tensor, y: Tensor) -> br.Learner:
        if y is sets[1][1]:
            raise ValueError("not this one")
        return br.map(coverage.net(), br.GaussianLikelihood(noise=0.1), num_data=len(y))

    runs = coverage.trained(build, sets, [0, 1, 2], epochs=1)
    assert [run is None for run in runs] == [False, True, False]


def test_an_unknown_method_is_answered_in_one_line() -> None:
    assert "vogn" in only_line(bench("coverage", "--methods", "vogm"))
