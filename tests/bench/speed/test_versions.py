"""Two source trees timed in turn: which source is imported, ratios, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from calling import bench, only_line

from benchmarks.speed import version_steps, versions

HERE = versions.HERE


def test_both_trees_are_timed_and_compared(tmp_path: Path) -> None:
    """The older tree is a copy whose map is slow, and in which there is no vogn."""
    shutil.copytree(HERE / "src", tmp_path / "old" / "src")
    init = tmp_path / "old" / "src" / "bayesrule" / "__init__.py"
    init.write_text(
        init.read_text()
        + """
import time
from bayesrule.methods import METHODS
_map = METHODS["map"]
def _slow(*words, **named):
    learner = _map(*words, **named)
    step = learner.step
    def late(*given, **more):
        time.sleep(0.02)
        return step(*given, **more)
    object.__setattr__(learner, "step", late)
    return learner
METHODS["map"] = _slow
del METHODS["vogn"]
"""
    )
    file = tmp_path / "versions.json"
    words = ["--cases", "small,many", "--methods", "map,vogn,mean_field", "--rounds", "1"]
    words += ["--processes", "1", "--threads", "1", "--out", str(file)]
    said = bench("versions", "--before", tmp_path / "old", *words)
    assert said.code == 0, said.err
    rows = {(one["case"], one["method"]): one for one in json.loads(file.read_text())["results"]}
    assert set(rows) == {
        ("small", "torch"),
        ("small", "map"),
        ("small", "mean_field"),
        ("many", "mean_field"),
    }
    assert rows["small", "map"]["before_milliseconds"] > 20.0
    assert rows["small", "map"]["ratio"] < 0.5
    assert "(small vogn did not run: KeyError: 'vogn' (before only))" in said.out


def timed(**milliseconds: float) -> dict[str, Any]:
    """What a process found on the small net."""
    return {"milliseconds": {f"small {name}": value for name, value in milliseconds.items()}}


def test_a_ratio_is_of_medians_over_processes() -> None:
    before = [timed(map=1.0, vogn=1.0), timed(map=2.0, vogn=1.0), timed(map=9.0, vogn=1.0)]
    after = [timed(map=3.0), timed(map=8.0), timed(map=4.0)]
    (row,) = versions.compared(before, after)
    assert (row["case"], row["method"]) == ("small", "map")
    assert row["ratio"] == 2.0
    assert row["ratios"] == [3.0, 4.0, pytest.approx(4 / 9)]


def test_processes_alternate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[str] = []

    def noted(tree: Path, _: object) -> dict[str, Any]:
        order.append("after" if tree == HERE else "before")
        return {**timed(map=1.0), "missing": {}}

    monkeypatch.setattr(versions, "_timed", noted)
    versions.run(tmp_path, ["small"], ["map"], processes=3)
    assert order == ["before", "after", "after", "before", "before", "after"]


def test_rounds_hold_whole_cycles() -> None:
    _, num = version_steps.stepper("small", "noisy_kfac")
    assert num % version_steps.CADENCE["inverse_every"] == 0


@pytest.mark.parametrize("case", ["mlp", "cnn", "small"])
def test_the_nets_take_their_batches(case: str) -> None:
    x, y = version_steps.batch(case)
    assert version_steps.network(case, "map")(x).shape == (len(y), 1 if case == "small" else 10)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--before", "nowhere"], "'nowhere' has no src/bayesrule"),
        (["--before", str(HERE), "--cases", "mpl"], "Unknown case 'mpl'. Did you mean 'mlp'?"),
        (["--before", str(HERE), "--methods", "vagn"], "Did you mean 'vogn'?"),
        ([], "--before"),
    ],
)
def test_what_there_is_not_is_refused_before_any_timing(words: list[str], expected: str) -> None:
    assert expected in only_line(bench("versions", *words))
