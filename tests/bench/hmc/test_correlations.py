"""Methods beside the variances of NUTS: trials, going on, and the command."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import TrainingError
from benchmarks.commands import hmc as bench_hmc
from benchmarks.hmc import correlations, reference
from benchmarks.hmc.reference import Plan
from tests.calling import bench, only_line

PLAN = Plan()


class _Sampled:
    """What NUTS would give: variances that grow with the first input."""

    rhat, ess = {"outputs": torch.tensor([1.0])}, {"outputs": torch.tensor([300.0])}
    divergences, seconds = 0, 0.1

    def predict(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(epistemic=x[:, :1].exp())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tables of two columns, no sampling, and a folder of one's own to be in."""
    x = np.random.default_rng(0).normal(3.0, 2.0, (130, 2))
    monkeypatch.setattr(reference, "uci_arrays", lambda name: (x, x[:, 0] ** 2))
    monkeypatch.setattr(reference, "hmc", lambda *given, **options: _Sampled())
    monkeypatch.setattr(reference, "DRAWS", 50)
    monkeypatch.chdir(tmp_path)


def truths(*sets: str, num: int = 2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reference.references(sets, num, PLAN)["references"]
    return found


def test_a_trial_is_the_correlation_of_variances() -> None:
    (truth,) = truths("yacht", num=1)
    (found,) = correlations.trials("vogn", [truth], PLAN, 3, {"draws": 2})
    (own,) = reference.variances("vogn", "yacht", [0], PLAN, 3, {"draws": 2})
    expected = float(np.corrcoef(own.numpy(), truth["variance"])[0, 1])
    assert found["correlation"] == pytest.approx(expected)
    assert (found["method"], found["set"], found["trial"]) == ("vogn", "yacht", 0)
    assert found["options"] == {"draws": 2}


def test_trials_that_learn_at_once_find_what_each_finds_alone() -> None:
    options = {"draws": 3, "learning_rate": 0.05, "stats_every": 1, "inverse_every": 1}
    both = reference.variances("noisy_kfac", "yacht", [0, 1], PLAN, 5, options)
    (alone,) = reference.variances("noisy_kfac", "yacht", [1], PLAN, 5, options)
    torch.testing.assert_close(both[1], alone, rtol=1e-8, atol=0.0)


def test_the_summary_has_a_row_for_each_method_and_set() -> None:
    trials = [
        {"method": "vogn", "set": "boston", "trial": i, "correlation": value}
        for i, value in enumerate((0.4, 0.8))
    ]
    trials += [{"method": "vogn", "set": "yacht", "trial": 0, "failed": "no"}]
    one, two = correlations.summary(trials)
    assert one["correlation"] == pytest.approx(0.6)
    assert one["error"] == pytest.approx(0.2)
    assert one["published"] == [0.733, 0.761, 0.891, 0.889]
    assert (two["trials"], two["failed"]) == (0, 1)
    assert math.isnan(two["correlation"])


def test_what_is_known_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, Any]] = []
    lines: list[str] = []
    given = truths("yacht", "boston")
    whole = correlations.run(["vogn", "ridge"], given, PLAN, epochs=2, keep=states.append)
    assert [len(one["trials"]) for one in states] == [2, 4, 6, 8]
    begun: list[int] = []
    trials = correlations.trials

    def noted(*given: Any) -> list[dict[str, Any]]:
        begun.append(len(given[1]))
        return trials(*given)

    monkeypatch.setattr(correlations, "trials", noted)
    known = states[2]["trials"][:5]
    again = correlations.run(
        ["VOGN", "ridge"], given, PLAN, epochs=2, known=known, progress=lines.append
    )
    assert sorted(begun) == [1, 2]
    assert lines[0] == "5 of 8 trials are there already"
    assert lines[-1].startswith("[8/8] ")
    first, second = (
        {(one["method"], one["set"], one["trial"]): one["correlation"] for one in run["trials"]}
        for run in (whole, again)
    )
    assert first == pytest.approx(second)
    with pytest.raises(CheckpointError, match=r"trials of vogn with \{\} already"):
        correlations.run(["vogn"], given, PLAN, options={"vogn": {"draws": 3}}, known=known)


def test_a_trial_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise TrainingError("the loss is nan")

    given, lines = truths("yacht", num=1), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(correlations, "variances", broken)
        found = correlations.run(["vogn"], given, PLAN, epochs=2, progress=lines.append)
    assert lines == ["[1/1] vogn on yacht, 1 trial: 1 failed, TrainingError: the loss is nan"]
    again = correlations.run(["vogn"], given, PLAN, epochs=2, known=found["trials"])
    assert again["results"][0]["trials"] == 1


@pytest.mark.parametrize("method", correlations.OPTIONS)
def test_the_options_of_each_method_are_its_own(method: str) -> None:
    correlations.check([method])


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("vogn", {"gain": 1.0}, "has no option gain"),
        ("map", {}, "map has no predictive variance"),
        ("vogm", {}, "Did you mean 'vogn'"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    method: str, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        correlations.check([method], {method: options})


def test_files_of_something_else_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    assert correlations.read(file, PLAN, 5) == []
    file.write_text(json.dumps(correlations.document(PLAN, 5, [])))
    assert correlations.read(file, PLAN, 5) == []
    with pytest.raises(CheckpointError, match=r"was made with epochs=5, .* epochs=6"):
        correlations.read(file, PLAN, 6)
    for content in ("", "[]", '{"plan": {}, "trials": [{}], "benchmark": "hmc-correlations"}'):
        file.write_text(content)
        with pytest.raises(CheckpointError, match="holds no result of this benchmark"):
            correlations.read(file, PLAN, 5)


class TestTheCommand:
    """`python -m benchmarks hmc`."""

    WORDS = ("hmc", "--methods", "vogn", "--sets", "yacht,boston", "--epochs", "2")

    def test_a_table_a_picture_and_going_on(self, tmp_path: Path) -> None:
        file = tmp_path / "results" / "hmc.json"
        words = (*self.WORDS, "--trials", "2", "--out", file)
        said = bench(*words, "--pictures", tmp_path)
        assert said.code == 0, said
        assert "with those of NUTS, 2 trials" in said.out
        row = next(line for line in said.out.splitlines() if line.startswith("boston")).split()
        assert row[-4:] == ["0.733", "0.761", "0.891", "0.889"]
        # What the reference lacks is sampled first and kept.
        assert said.err.splitlines()[0].startswith("4 trials are not in 'hmc_reference.json'")
        assert len(json.loads((tmp_path / "hmc_reference.json").read_text())["references"]) == 4
        assert (tmp_path / "hmc-correlations.svg").is_file()
        kept = json.loads(file.read_text())
        assert len(kept["trials"]) == 4
        assert kept["command"].startswith("python -m benchmarks hmc")
        more = bench(*words, "--methods", "ridge")
        assert more.err.splitlines()[0].startswith("[2/4] ridge on yacht, 2 trials")
        assert len(json.loads(file.read_text())["trials"]) == 8

    def test_fewer_trials_than_the_reference_has(self) -> None:
        bench(*self.WORDS, "--trials", "2")
        said = bench(*self.WORDS, "--trials", "1", "--json")
        found = json.loads(said.out)
        assert [one["trials"] for one in found["results"]] == [1, 1]
        assert found["command"].endswith("--json")

    def test_without_nutpie_it_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        line = only_line(bench(*self.WORDS, "--trials", "3"))
        assert "lacks the variances of NUTS for 6 trials (first: yacht, trial 1)" in line
        assert "pip install 'bayesrule[hmc]'" in line

    def test_the_committed_reference_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(Path(__file__).parents[3])
        assert bench_hmc.COMMITTED.exists()
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        said = bench(*self.WORDS, "--trials", "1")
        assert said.code == 0, said

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--sets", "bostn"], "Did you mean 'boston'?"),
            (["--methods", "vogm"], "Unknown method 'vogm'. Did you mean 'vogn'?"),
            (["--methods", "map"], "map has no predictive variance"),
        ],
    )
    def test_what_there_is_not_is_refused(self, words: list[str], expected: str) -> None:
        assert expected in only_line(bench("hmc", *words))
