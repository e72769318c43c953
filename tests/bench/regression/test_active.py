"""Active learning beside the published table: rows, trials, going on, and how it is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesrule.training.checkpoint import CheckpointError
from benchmarks.regression import active
from tests.calling import bench, only_line

PLAN = active.Plan(epochs=2, hidden=(2,), steps=2)
WORDS = ["active", "--sets", "yacht", "--trials", "2", "--epochs", "2"]


@pytest.fixture(autouse=True)
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is looked for: a curve over two inputs, in units of its own."""

    def arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(len(name))
        x = random.normal(size=(150, 2))
        return x, 50.0 + 20.0 * np.sin(x[:, 0]) + random.normal(size=150)

    monkeypatch.setattr(active, "uci_arrays", arrays)


def test_rows_of_a_trial_are_apart_and_the_same_for_all() -> None:
    first, test, rest = active.rows(150, active.Plan(), 3)
    assert [len(part) for part in (first, test, rest)] == [20, 100, 30]
    assert torch.cat([first, test, rest]).sort().values.tolist() == list(range(150))
    again, other = active.rows(150, active.Plan(), 3)[0], active.rows(150, active.Plan(), 4)[0]
    assert first.tolist() == again.tolist() != other.tolist()
    assert first.tolist() != active.rows(150, active.Plan(seed=1), 3)[0].tolist()


def test_a_trial_has_a_score_for_each_fit() -> None:
    random, chosen = (
        active.run_trial(active.Trial("vogn", "yacht", name, 1), PLAN)
        for name in ("random", "variance")
    )
    for found in (random, chosen):
        assert len(found["rmse"]) == len(found["log_likelihood"]) == 3
        assert len(set(found["chosen"])) == 2
    # Criteria of one trial begin alike.
    assert random["rmse"][0] == chosen["rmse"][0]
    assert random["chosen"] != chosen["chosen"]
    first, test, _ = active.rows(150, PLAN, 1)
    assert not set(chosen["chosen"]) & {*first.tolist(), *test.tolist()}


def test_epochs_and_batches_are_the_same_however_many_rows_are_labelled() -> None:
    trial = active.Trial("vogn", "yacht", "random", 0)
    recipe = active.Plan().recipe(trial)
    assert (recipe.epochs, recipe.batch_size, recipe.hidden) == (1000, 29, (10,))
    assert active.Plan(epochs=7).recipe(trial).epochs == 7


def test_first_trials_come_first_and_only_what_fits() -> None:
    found = list(active.trials(["VOGN", "map"], ["wine", "yacht"], ["random", "variance"], 2))
    assert [(t.method, t.set, t.criterion) for t in found[:4]] == [
        ("vogn", "wine_red", "random"),
        ("vogn", "wine_red", "variance"),
        ("map", "wine_red", "random"),
        ("vogn", "yacht", "random"),
    ]
    assert [trial.trial for trial in found] == [0] * 6 + [1] * 6


def kinds(*criteria: str, num: int = 2, **options: Any) -> dict[str, Any]:
    return active.run(["vogn"], ["yacht"], criteria, num=num, plan=PLAN, **options)


def without_times(found: dict[str, Any]) -> list[dict[str, Any]]:
    trials = [{k: v for k, v in one.items() if k != "seconds"} for one in found["trials"]]
    return sorted(trials, key=lambda one: (one["trial"], one["criterion"]))


def test_what_is_known_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, Any]] = []
    whole = kinds("random", "variance", keep=states.append)
    assert [len(one["trials"]) for one in states] == [1, 2, 3, 4]
    lines: list[str] = []
    begun: list[active.Trial] = []
    run_trial = active.run_trial

    def noted(trial: active.Trial, plan: active.Plan) -> dict[str, Any]:
        begun.append(trial)
        return run_trial(trial, plan)

    monkeypatch.setattr(active, "run_trial", noted)
    resumed = kinds("random", "variance", known=states[1]["trials"], progress=lines.append)
    assert len(begun) == 2
    assert without_times(resumed) == without_times(whole)
    assert lines[0] == "2 of 4 trials are there already"
    assert lines[-1].startswith("[4/4] vogn on yacht, variance, trial 2: RMSE ")


def test_the_summary_is_of_the_last_fit() -> None:
    trials = [
        {"method": "vogn", "set": "boston", "criterion": "random", "trial": i, "seconds": 1.0}
        | {"rmse": [9.0, last], "log_likelihood": [-5.0, -last]}
        for i, last in enumerate((4.0, 6.0))
    ]
    trials.append({**trials[0], "trial": 2, "error": "ValueError: no"})
    (found,) = active.summary(trials)
    assert found["rmse"] == {"mean": 5.0, "error": pytest.approx(1.0)}
    assert found["average_rmse"]["mean"] == 7.0
    assert found["log_likelihood"]["mean"] == -5.0
    assert (found["trials"], found["failed"]) == (2, 1)
    assert found["published"]["HMC"] == [5.750, 0.222]
    assert math.isnan(active.summary([trials[2]])[0]["rmse"]["mean"])


def test_a_trial_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise FloatingPointError("too large")

    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(active, "active_learning", broken)
        found = kinds("random", num=1, progress=lines.append)
    assert lines == ["[1/1] vogn on yacht, random, trial 1: failed, FloatingPointError: too large"]
    assert found["results"][0]["failed"] == 1
    again = kinds("random", num=1, known=found["trials"])
    assert [one["failed"] for one in again["results"]] == [0]


class TestReading:
    """Files that trials are kept in."""

    def test_none_where_there_is_no_file(self, tmp_path: Path) -> None:
        assert active.read(tmp_path / "none.json", PLAN) == []

    @pytest.mark.parametrize("content", ["", "[]", '{"plan": {}}', '{"plan": {}, "trials": [{}]}'])
    def test_another_file_is_left_alone(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "other.json"
        file.write_text(content)
        with pytest.raises(CheckpointError, match="holds no result of this benchmark"):
            active.read(file, PLAN)

    def test_trials_of_another_plan_are_not_mixed_in(self, tmp_path: Path) -> None:
        file = tmp_path / "kept.json"
        file.write_text(json.dumps(active.document(PLAN, [])))
        assert active.read(file, PLAN) == []
        with pytest.raises(CheckpointError, match=r"has trials with epochs=2, .* epochs=3"):
            active.read(file, active.Plan(epochs=3, hidden=(2,), steps=2))


class TestTheCommand:
    """`python -m benchmarks active`."""

    def test_a_table_and_going_on(self, tmp_path: Path) -> None:
        file = tmp_path / "results" / "active.json"
        said = bench(*WORDS, "--methods", "ridge", "--out", file)
        assert said.code == 0
        assert "ridge: test RMSE after 9 labels, 2 trials" in said.out
        row = next(line for line in said.out.splitlines() if line.startswith("yacht")).split()
        assert row[-6:] == ["7.142", "6.245", "5.388", "4.508", "4.644", "3.211"]
        assert "of 1 sets." in said.out
        assert len(said.err.splitlines()) == 4
        kept = json.loads(file.read_text())
        assert len(kept["trials"]) == 4
        assert len(kept["trials"][0]["rmse"]) == 10
        assert kept["plan"]["epochs"] == 2
        more = bench(*WORDS, "--methods", "ridge", "--trials", "3", "--out", file)
        assert more.err.splitlines()[0] == "4 of 6 trials are there already"
        assert len(json.loads(file.read_text())["trials"]) == 6
        other = bench(*WORDS, "--seed", "1", "--out", file)
        assert "has trials with seed=0, these are to have seed=1" in only_line(other)

    def test_what_was_done_is_kept_when_it_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "active.json"
        run_trial = active.run_trial

        def stopped(trial: active.Trial, plan: active.Plan) -> dict[str, Any]:
            if trial.trial == 1:
                raise KeyboardInterrupt
            return run_trial(trial, plan)

        monkeypatch.setattr(active, "run_trial", stopped)
        said = bench(*WORDS, "--methods", "ridge", "--out", file)
        assert said.code == 130
        assert len(json.loads(file.read_text())["trials"]) == 2

    def test_json_alone_and_point_estimates(self) -> None:
        said = bench(*WORDS, "--methods", "map", "--trials", "1", "--json")
        found = json.loads(said.out)
        assert [one["criterion"] for one in found["results"]] == ["random"]
        assert "map has no predictive variance, so it goes without variance" in said.err

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--sets", "bostn"], "No UCI set 'bostn'. Did you mean 'boston'?"),
            (["--criteria", "varance"], "Unknown criterion 'varance'. Did you mean 'variance'?"),
            (["--methods", "vogm"], "Unknown method 'vogm'. Did you mean 'vogn'?"),
            (["--methods", "adam", "--criteria", "bald"], "only the criterion random goes with it"),
        ],
    )
    def test_what_there_is_not_is_refused_before_any_training(
        self, words: list[str], expected: str
    ) -> None:
        assert expected in only_line(bench("active", *words))
