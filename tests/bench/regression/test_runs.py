"""Methods on the UCI sets: what is trained and how, scores, going on, and how it is told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesrule as br
from bayesrule.methods import Course
from bayesrule.schedules import cosine
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import TrainingError
from benchmarks.data.uci import UCI, RegressionSplit
from benchmarks.regression import runs, settings, uci
from benchmarks.regression.runs import Plan
from benchmarks.regression.settings import OWN, SETTINGS, Setting, Tagi, entries
from benchmarks.regression.tasks import PAPER, PUBLISHED, TASKS
from tests.calling import bench, only_line

PLAN = Plan(splits=2, epochs=2)
WORDS = ("uci", "--splits", "2", "--epochs", "2")


@pytest.fixture(autouse=True)
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is looked for: a curve over two inputs, and a row less in split 1."""

    def split(name: str, number: int) -> RegressionSplit:
        random = np.random.default_rng(number)
        x = random.normal(size=(70, 2))
        y = 50.0 + 20.0 * np.sin(x[:, 0]) + 5.0 * x[:, 1] + random.normal(size=len(x))
        last = 60 - number % 2
        return RegressionSplit(name, number, x[:last], y[:last], x[60:], y[60:])

    monkeypatch.setattr(uci, "uci", split)


class TestTheTables:
    """What is published."""

    def test_all_sets_and_columns_are_there(self) -> None:
        columns = ["BBB", "PBP", "PBP_MV", "NNG-MVG"]
        for deep, more in ((False, ["dropout"]), (True, [])):
            assert list(PUBLISHED[deep]) == list(UCI)
            for figures in PUBLISHED[deep].values():
                assert list(figures) == columns + more

    def test_figures_stand_where_the_paper_has_them(self) -> None:
        boston, yacht = PUBLISHED[False]["boston"], PUBLISHED[True]["yacht"]
        assert boston["NNG-MVG"] == {"rmse": (2.296, 0.029), "log_likelihood": (-2.336, 0.005)}
        assert boston["BBB"] == {"rmse": (2.517, 0.022), "log_likelihood": (-2.5, 0.004)}
        assert boston["dropout"]["log_likelihood"][0] == -2.4
        assert yacht["PBP_MV"] == {"rmse": (0.806, 0.061), "log_likelihood": (-1.642, 0.021)}
        # The paper's bold face.
        best = {
            name
            for name, each in PUBLISHED[False].items()
            if each["NNG-MVG"]["rmse"][0] == min(each[who]["rmse"][0] for who in PAPER)
        }
        assert best == set(UCI) - {"power", "yacht"}

    def test_the_papers_batches_and_epochs(self) -> None:
        small = {name for name, task in TASKS.items() if task.batch == 10}
        assert small == {name for name, one in UCI.items() if one.rows < 2000}
        assert (TASKS["protein"].hidden, TASKS["protein"].epochs) == (100, 500)
        assert (TASKS["naval"].hidden, TASKS["naval"].epochs, TASKS["naval"].batch) == (
            *(50, 1000),
            100,
        )


class TestSettings:
    """What is chosen for a row."""

    def test_the_papers_own(self) -> None:
        learner = SETTINGS["noisy_kfac"].learner("boston", 13, 455)
        assert learner.likelihood == br.GaussianLikelihood(shape=6.0, rate=6.0)
        assert (learner.prior_precision, learner.temperature) == (1.0, 1.0)
        assert learner.expectation == br.Draws(10)
        rule: Any = learner.rule
        assert (rule.rate, rule.stats_every, rule.inverse_every, rule.kl_clip) == (
            *(1e-3, 1, 1),
            math.inf,
        )
        # A tenth in the second half of 1000 epochs of 46 batches.
        assert [rule.learning_rate(t) for t in (0, 22_999, 23_000)] == [
            0.01,
            0.01,
            pytest.approx(0.001),
        ]
        assert [p.shape[0] for p in learner.model.parameters()] == [50, 50, 1, 1]

    def test_mean_field_has_the_same_but_for_the_belief(self) -> None:
        one, two = (SETTINGS[n].learner("boston", 13, 455) for n in ("noisy_kfac", "mean_field"))
        assert one.likelihood == two.likelihood
        assert one.expectation == two.expectation
        assert (one.prior_precision, one.num_data) == (two.prior_precision, two.num_data)
        first, second = (learner.rule.learning_rate for learner in (one, two))
        assert first == second

    @pytest.mark.parametrize("name", SETTINGS)
    def test_every_one_of_them_can_be_built(self, name: str) -> None:
        learner = SETTINGS[name].learner("protein", 9, 41157, two_layers=name != "noisy_full")
        assert max(p.shape[0] for p in learner.model.parameters()) == 100

    def test_nothing_is_chosen_for_a_set_by_ones_own(self) -> None:
        one, two = (OWN.learner(name, 13, 455) for name in ("boston", "naval"))
        assert one.rule == two.rule
        assert OWN.size("boston", 455) == OWN.size("naval", 455)
        # At least so many epochs, and about so many steps where they are more.
        assert OWN.size("boston", 10**6)[0] >= 60
        epochs, batch = OWN.size("boston", 455)
        assert epochs * math.ceil(455 / batch) == pytest.approx(30_000, rel=0.1)

    def test_a_variant(self) -> None:
        mine = replace(
            OWN,
            learning_rate=0.2,
            schedule=cosine,
            course=Course(least=3, most=3, batch=7),
            noise_rate=0.5,
            prior_precision=2.0,
            draws=3,
        )
        learner = mine.learner("boston", 13, 70)
        assert learner.rule.learning_rate == cosine(0.2, steps=30)
        assert learner.likelihood == br.GaussianLikelihood(shape=OWN.noise_shape, rate=0.5)
        assert (learner.expectation, learner.prior_precision) == (br.Draws(3), 2.0)
        json.dumps(mine.facts(), allow_nan=False)
        with pytest.raises(ValueError, match="has no option gain"):
            replace(OWN, options={"gain": 1.0}).learner("boston", 13, 70)

    def test_names(self) -> None:
        found = entries(["tagi", "mean_field", "tagi-table"], ["learned"])
        assert [one.name for one in found] == ["tagi-learned", "mean_field", "tagi-table"]
        with pytest.raises(ValueError, match=r"Unknown method 'noisy_kfca'\. Did you mean"):
            entries(["noisy_kfca"])


def test_each_split_is_trained_as_it_would_be_alone() -> None:
    setting, data = SETTINGS["vogn"], uci.load("boston", 2)
    assert [len(y) for _, y in runs.splits(data)] == [60, 59]
    found = runs.train(setting, data, "boston", plan=PLAN)
    for k, (x, y) in enumerate(runs.splits(data)):
        learner = setting.learner("boston", 2, len(y), epochs=2, seed=k)
        alone = br.fit(learner, (x, y), epochs=2, batch_size=10, seed=k, progress=False)
        for name, mean in alone.state.posterior.mean.items():
            torch.testing.assert_close(found[k].state.posterior.mean[name], mean)


def test_scores_are_those_of_the_mixture_in_original_units() -> None:
    plan, setting = Plan(splits=2, epochs=15), replace(SETTINGS["mean_field"], draws=1)
    (row,) = runs.run([setting], ["boston"], plan=plan)["results"]
    data = uci.load("boston", 2)
    trained = runs.train(setting, data, "boston", plan=plan)
    for k, one in enumerate(trained):
        f = torch.stack([*one.predict(data.x_test[k], br.Draws(100)).conditional_means])[..., 0]
        noise = one.state.likelihood["b"] / one.state.likelihood["a"]
        off = ((data.y_test[k] - data.shift[k]) / data.scale[k] - f).square()
        density = -0.5 * ((2 * math.pi * noise).log() + off / noise) - data.scale[k].log()
        expected = float((density.logsumexp(0) - math.log(100)).mean())
        assert row["by_split"]["log_likelihood"][k] == pytest.approx(expected, rel=1e-4)
        error = float((data.scale[k] * f.mean(0) + data.shift[k] - data.y_test[k]).norm()) / 10**0.5
        assert row["by_split"]["rmse"][k] == pytest.approx(error, rel=1e-4)
    assert row["rmse"]["mean"] == pytest.approx(sum(row["by_split"]["rmse"]) / 2)
    # The curve has been learned: 15 is the spread of the targets.
    assert row["rmse"]["mean"] < 8.0
    assert (row["epochs"], row["batch_size"], row["splits"]) == (15, 10, 2)
    assert row["options"]["learning_rate"] == 0.01
    assert row["published"]["NNG-MVG"]["rmse"] == [2.296, 0.029]


def test_two_layers_and_ones_own_setting() -> None:
    mine = Setting("mine", "vogn", draws=1, course=Course(least=1, most=1))
    found = runs.run([mine, Tagi("learned")], ["yacht"], plan=Plan(splits=1))
    assert [one["entry"] for one in found["results"]] == ["mine", "tagi-learned"]
    deep = runs.run([mine], ["yacht"], plan=PLAN, two_layers=True)["results"][0]
    assert deep["two_layers"] is True
    assert deep["published"]["PBP"]["rmse"] == [0.864, 0.042]


def test_what_is_known_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, Any]] = []
    whole = runs.run(["vogn", "mean_field"], ["yacht", "wine"], plan=PLAN, keep=states.append)
    assert [len(one["results"]) for one in states] == [1, 2, 3, 4]
    known = json.loads(json.dumps(states[2]["results"]))
    lines: list[str] = []
    begun: list[str] = []
    fit_many = runs.fit_many

    def noted(*given: Any, **options: Any) -> Any:
        begun.append("fit")
        return fit_many(*given, **options)

    monkeypatch.setattr(runs, "fit_many", noted)
    again = runs.run(
        ["vogn", "mean_field"], ["yacht", "wine_red"], plan=PLAN, known=known, progress=lines.append
    )
    assert len(begun) == 1
    assert lines[0] == "3 of 4 rows are there already"
    assert lines[1].startswith("[4/4] mean_field on wine_red: RMSE ")
    assert [one["by_split"] for one in again["results"]] == [
        one["by_split"] for one in whole["results"]
    ]


def test_a_row_of_another_setting_is_not_taken_for_this_one() -> None:
    known = runs.run(["vogn"], ["yacht"], plan=PLAN)["results"]
    other = replace(SETTINGS["vogn"], draws=2)
    with pytest.raises(CheckpointError, match=r"a row of vogn on yacht with .*'draws': 10"):
        runs.run([other], ["yacht"], plan=PLAN, known=known)


def test_a_row_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TrainingError("Set 0: the loss is nan.")

    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit_many", broken)
        found = runs.run(["vogn"], ["yacht"], plan=PLAN, progress=lines.append)
    assert lines == ["[1/1] vogn on yacht: failed, TrainingError: Set 0: the loss is nan."]
    again = runs.run(["vogn"], ["yacht"], plan=PLAN, known=found["results"])
    assert "failed" not in again["results"][0]


class TestReading:
    """Files that rows are kept in."""

    def test_none_where_there_is_no_file(self, tmp_path: Path) -> None:
        assert runs.read(tmp_path / "none.json", PLAN) == []

    @pytest.mark.parametrize(
        "content",
        ["", "[]", '{"results": []}', '{"benchmark": "uci", "results": [{}]}'],
    )
    def test_another_file_is_left_alone(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "other.json"
        file.write_text(content)
        with pytest.raises(CheckpointError, match="holds no result of this benchmark"):
            runs.read(file, PLAN)

    def test_another_benchmark_and_another_plan(self, tmp_path: Path) -> None:
        file = tmp_path / "kept.json"
        file.write_text(json.dumps(runs.document(PLAN, [])))
        assert runs.read(file, PLAN) == []
        with pytest.raises(CheckpointError, match=r"was made with epochs=2, .* epochs=3"):
            runs.read(file, replace(PLAN, epochs=3))
        file.write_text('{"benchmark": "speed", "results": []}')
        with pytest.raises(CheckpointError, match="another benchmark"):
            runs.read(file, PLAN)

    def test_the_committed_rows_of_tagi(self) -> None:
        file = Path(__file__).parents[3] / "benchmarks" / "results" / "uci_tagi.json"
        known = runs.read(file, Plan())
        found = runs.run([Tagi("table"), Tagi("learned")], list(UCI), known=known)
        assert found["results"] == known


class TestTheCommand:
    """`python -m benchmarks uci` with methods."""

    def test_tables_a_summary_and_pictures(self, tmp_path: Path) -> None:
        file = tmp_path / "results" / "uci.json"
        words = (*WORDS, "--methods", "vogn,mean_field", "--sets", "yacht,wine", "--out", file)
        said = bench(*words, "--pictures", tmp_path)
        assert said.code == 0
        lines = said.out.splitlines()
        assert "RMSE, one hidden layer" in lines
        assert "log-likelihood, one hidden layer" in lines
        row = next(line for line in lines if line.startswith("yacht")).split()
        assert row[-5:] == ["0.983", "1.015", "0.676", "0.827", "0.67"]
        assert any(line.startswith("vogn beats mean_field on ") for line in lines)
        assert sum(line.startswith("Mean rank in log-likelihood over 2") for line in lines) == 2
        assert (tmp_path / "uci-log_likelihood.svg").is_file()
        kept = json.loads(file.read_text())
        assert kept["command"].startswith("python -m benchmarks uci --splits 2")
        assert [one["sets"] for one in kept["wins"]] == [2]
        deep = bench(*words, "--two-layers")
        assert "RMSE, two hidden layers" in deep.out
        assert len(json.loads(file.read_text())["results"]) == 8

    def test_what_was_done_is_kept_when_it_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, fit_many = tmp_path / "uci.json", runs.fit_many
        begun: list[int] = []

        def stopped(*given: Any, **options: Any) -> Any:
            begun.append(1)
            if len(begun) == 2:
                raise KeyboardInterrupt
            return fit_many(*given, **options)

        monkeypatch.setattr(runs, "fit_many", stopped)
        said = bench(*WORDS, "--methods", "vogn,mean_field", "--sets", "yacht", "--out", file)
        assert said.code == 130
        assert [one["entry"] for one in json.loads(file.read_text())["results"]] == ["vogn"]

    def test_rows_of_other_files_are_added(self, tmp_path: Path) -> None:
        apart, whole = tmp_path / "rows", tmp_path / "uci.json"
        for name in ("vogn", "mean_field"):
            words = (*WORDS, "--methods", name, "--sets", "yacht")
            assert bench(*words, "--out", apart / f"{name}.json").code == 0
        words = (*WORDS, "--methods", "vogn,mean_field", "--sets", "yacht")
        said = bench(*words, "--add", apart, "--out", whole)
        assert "2 of 2 rows are there already" in said.err
        kept = json.loads(whole.read_text())
        assert {one["entry"] for one in kept["results"]} == {"vogn", "mean_field"}
        assert kept["wins"][0]["sets"] == 1
        # A file alone, and what is in --out already is not taken from elsewhere.
        again = bench(*words, "--add", apart / "vogn.json", "--out", whole, "--json")
        assert json.loads(again.out)["results"] == kept["results"]
        for place in (tmp_path / "no.json", tmp_path / "empty"):
            assert "There is no json file at" in only_line(bench(*words, "--add", place))

    def test_json_alone(self) -> None:
        said = bench(*WORDS, "--methods", "vogn", "--sets", "yacht", "--json")
        found = json.loads(said.out)
        assert found["results"][0]["entry"] == "vogn"
        assert found["command"].endswith("--json")
        assert found["results"][0]["published"]["dropout"]["rmse"] == [0.67, None]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--methods", "vogm"], "Unknown method 'vogm'. Did you mean 'vogn'?"),
            (["--methods", "vogn", "--sets", "bostn"], "Did you mean 'boston'?"),
            (["--methods", "vogn", "--settings", "table"], "--settings are tagi's"),
            (["--methods", "vogn", "--device", "nowhere"], "The device 'nowhere' cannot be used"),
            (["--methods", "tagi", "--device", "meta"], "tagi trains on the CPU here"),
        ],
    )
    def test_what_there_is_not_is_refused_before_any_training(
        self, words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(settings, "mlp")
        assert expected in only_line(bench("uci", *words))
