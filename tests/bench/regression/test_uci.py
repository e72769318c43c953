"""TAGI beside pytagi's table: what is trained, how it is scored, and how it is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesrule as br
from benchmarks.data.uci import RegressionSplit
from benchmarks.regression import uci
from tests.calling import bench, only_line


def split_of(name: str, number: int) -> RegressionSplit:
    """A curve over two inputs, a third one that never changes, and a row less in split 1."""
    random = np.random.default_rng(number)
    x = random.normal(size=(70 - number, 3))
    x[:, 2] = 4.0
    y = 50.0 + 20.0 * np.sin(x[:, 0]) + 5.0 * x[:, 1] + random.normal(size=len(x))
    return RegressionSplit(name, number, x[:60], y[:60], x[60:], y[60:])


@pytest.fixture(autouse=True)
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is looked for, and learning is short."""

    def shorter(name: str, number: int) -> RegressionSplit:
        whole = split_of(name, number)
        rows = slice(0, 60 - number % 2)
        return RegressionSplit(
            name, number, whole.x_train[rows], whole.y_train[rows], whole.x_test, whole.y_test
        )

    monkeypatch.setattr(uci, "uci", shorter)
    monkeypatch.setattr(uci, "STEPS", 120)


def test_inputs_and_targets_are_standardised_on_the_training_part() -> None:
    data = uci.load("boston", 2)
    assert data.x.shape == (2, 60, 3)
    torch.testing.assert_close(data.x[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.x[0, :, :2].std(0, correction=0), torch.ones(2))
    # A column that never changes says nothing and is not divided by zero.
    assert not data.x[0, :, 2].any()
    split = split_of("boston", 0)
    restored = data.y[0, :, 0] * data.scale[0] + data.shift[0]
    torch.testing.assert_close(restored, torch.from_numpy(split.y_train).float())
    torch.testing.assert_close(data.y_test[0], torch.from_numpy(split.y_test).float())
    middle, scale = split.x_train[:, 0].mean(), split.x_train[:, 0].std()
    expected = torch.from_numpy((split.x_test[:, 0] - middle) / scale).float()
    torch.testing.assert_close(data.x_test[0][:, 0], expected)


def test_a_shorter_split_is_filled_up_with_missing_targets() -> None:
    data = uci.load("boston", 2)
    assert data.y.isnan().nonzero().tolist() == [[1, 59, 0]]
    assert data.x.isfinite().all()


def test_all_splits_of_the_protocol_by_default() -> None:
    assert len(uci.load("boston").x) == 20
    assert len(uci.load("protein").x) == 5
    assert len(uci.load("protein", 9).x) == 5


@pytest.mark.parametrize(
    ("setting", "size", "expected"),
    [
        ("table", 455, 13),
        ("learned", 60, 20),  # as many as make the steps
        ("learned", 10, 100),
        ("learned", 5000, 20),
    ],
)
def test_epochs(setting: str, size: int, expected: int) -> None:
    assert uci.epochs_of("boston", setting, size) == expected


class TestTheLearner:
    """What is taken from the table, and what is the same for all sets."""

    def test_the_table(self) -> None:
        learner = uci.learner_of("boston", "table", 13, 455)
        assert learner.likelihood == br.GaussianLikelihood(0.3, shape=1.0, rate=0.1)
        # 13 epochs of 46 batches: all together no variance falls by more than the factor 4550.
        assert learner.rule == br.Conditioning(
            reach=2.0, largest_share=math.log(4550.0) / (13 * 46)
        )

    def test_nothing_is_chosen_for_a_set(self) -> None:
        one, two = (uci.learner_of(name, "learned", 13, 455) for name in ("boston", "naval"))
        assert one.likelihood == two.likelihood == br.GaussianLikelihood(shape=1.0, rate=0.1)
        assert one.rule == two.rule

    @pytest.mark.parametrize(("setting", "width"), [("table", 2.0), ("learned", 1.0)])
    def test_the_first_belief(self, setting: str, width: float) -> None:
        state = br.execution.Stacked(uci.learner_of("boston", setting, 13, 455), 200).init()
        for name, mean in state.posterior.mean.items():
            fan_in, wide = (50, 1.0) if name.startswith("2") else (13, width)
            assert float(mean.std()) == pytest.approx(wide * fan_in**-0.5, rel=0.15)
            variance = state.posterior.variance()[name]
            torch.testing.assert_close(variance, torch.full_like(mean, 1.0 / fan_in))


def test_every_epoch_is_an_order_of_its_own_for_each_split() -> None:
    data = uci.load("boston", 2)
    first, second = (
        torch.cat([y for _, y in uci._batches(data, 0, epoch)], 1).squeeze(2) for epoch in (0, 1)
    )
    assert not torch.equal(first, second)
    for epoch in (first, second):
        torch.testing.assert_close(
            epoch.nan_to_num(9.0).sort(1).values, data.y.squeeze(2).nan_to_num(9.0).sort(1).values
        )
    sizes = [x.shape[1] for x, _ in uci._batches(data, 0, 0)]
    assert sizes == [10] * 6


def test_scores_are_those_of_the_predictions_in_original_units() -> None:
    result = uci.row(uci.load("boston", 2), "boston", "learned")
    data = uci.load("boston", 2)
    stack, state = uci.train(data, "boston", "learned")
    errors, log_likelihoods = [], []
    for k, one in enumerate(stack.unstack(state)):
        found = br.predict(stack.learner, one, data.x_test[k])
        mean = data.shift[k] + data.scale[k] * found.mean[:, 0]
        variance = data.scale[k] ** 2 * (found.epistemic + found.aleatoric)[:, 0]
        off = (data.y_test[k] - mean).square()
        errors.append(float(off.mean().sqrt()))
        density = -0.5 * ((2 * math.pi * variance).log() + off / variance)
        log_likelihoods.append(float(density.mean()))
    assert result["rmse"]["mean"] == pytest.approx(sum(errors) / 2, rel=1e-5)
    assert result["log_likelihood"]["mean"] == pytest.approx(sum(log_likelihoods) / 2, rel=1e-5)
    assert result["rmse"]["error"] == pytest.approx(abs(errors[0] - errors[1]) / 2, rel=1e-4)
    assert result["by_split"]["rmse"] == pytest.approx(errors, rel=1e-5)
    assert result["by_split"]["log_likelihood"] == pytest.approx(log_likelihoods, rel=1e-5)
    assert result["epochs"] == 20
    # The curve has been learned: 15 is the spread of the targets.
    assert result["rmse"]["mean"] < 6.0


def test_counts_of_what_is_at_least_as_good() -> None:
    def result(rmse: float, log_likelihood: float) -> dict[str, object]:
        return {
            "setting": "table",
            "rmse": {"mean": rmse},
            "log_likelihood": {"mean": log_likelihood},
            "published": {"rmse": 2.0, "log_likelihood": -1.0},
        }

    results = [result(2.0, -1.0), result(1.0, -1.1), result(2.1, -0.9), result(3.0, -2.0)]
    assert uci.counts(results, "table") == {"sets": 4, "rmse": 2, "log_likelihood": 2, "both": 1}
    assert uci.counts(results, "learned")["sets"] == 0


class TestTheCommand:
    """`python -m benchmarks uci` with TAGI, which it runs where nothing else is asked for."""

    WORDS = ("uci", "--sets", "yacht,wine", "--splits", "2", "--settings", "learned")

    def test_a_table_and_json(self, tmp_path: Path) -> None:
        file = tmp_path / "results" / "uci.json"
        said = bench(*self.WORDS, "--out", file)
        assert said.code == 0
        assert "TAGI, learned noise, nothing chosen for a set" in said.out
        assert "wine_red" in said.out
        assert "(both) of 2 sets." in said.out
        assert "[1/2] tagi-learned on yacht: RMSE " in said.err
        kept = json.loads(file.read_text())
        assert kept["command"] == f"python -m benchmarks {' '.join(self.WORDS)} --out {file}"
        assert [one["set"] for one in kept["results"]] == ["yacht", "wine_red"]
        assert kept["counts"]["learned"]["sets"] == 2
        assert kept["settings"] == {"learned": uci.SETTINGS["learned"].title}
        assert {"torch", "python"} <= kept["versions"].keys()

    def test_json_alone(self) -> None:
        said = bench("uci", "--sets", "yacht", "--splits", "1", "--json")
        found = json.loads(said.out)
        assert [one["setting"] for one in found["results"]] == ["table", "learned"]
        assert found["results"][0]["rmse"]["error"] is None

    def test_rows_that_are_there_are_not_trained_again(self, tmp_path: Path) -> None:
        file = tmp_path / "uci.json"
        one = bench("uci", "--sets", "yacht", "--splits", "1", "--out", file)
        two = bench("uci", "--sets", "yacht", "--splits", "1", "--out", file)
        assert two.err == "2 of 2 rows are there already\n"
        assert two.out == one.out

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--sets", "bostn"], "No UCI set 'bostn'. Did you mean 'boston'?"),
            (["--settings", "tabel"], "Unknown setting 'tabel'. Did you mean 'table'?"),
            (["--two-layers"], "tagi has one hidden layer"),
            (["--epochs", "3"], "leave out --epochs, or tagi from --methods"),
        ],
    )
    def test_what_there_is_not_is_refused_before_any_training(
        self, words: list[str], expected: str
    ) -> None:
        assert expected in only_line(bench("uci", *words))
