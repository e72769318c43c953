"""Methods at temperatures on images: trials, scores, choosing, going on, and the price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bayesrule.app.data.errors import DataError
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.methods import map, variational_laplace
from bayesrule.training.checkpoint import CheckpointError
from benchmarks import trials
from benchmarks.images import variational, variational_tasks
from benchmarks.images.variational import Trial

from .small_tasks import preact


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(variational.TASKS, "small", preact())


def run(*given: Trial, **options: Any) -> dict[str, Any]:
    return variational.run("small", given, **{"held_out": 60, **options})


def without_times(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bare = [{**one, "history": [dict(row) for row in one["history"]]} for one in results]
    for one in bare:
        for row in one["history"]:
            del row["seconds"]
    return bare


def test_every_method_has_its_ways_of_predicting() -> None:
    lines: list[str] = []
    methods = variational_tasks.METHODS
    found = run(*(Trial(name) for name in methods), show=lines.append)
    ways = [(one["method"], one["way"]) for one in found["results"]]
    assert ways == [(name, way) for name, known in methods.items() for way in known.ways]
    assert found["num_data"] == 240
    assert found["published"]["map, mean"] == [0.5, 90.0, 0.1]
    for one in found["results"]:
        assert [row["epoch"] for row in one["history"]] == [1, 2]
        assert one["history"][1]["loss"] < one["history"][0]["loss"]
        assert set(one["test"]) == set(one["held_out"]) == {"nll", "accuracy", "ece"}
        assert ("price" in one["history"][0]) == (one["method"] == "variational_laplace")
    assert lines[0] == "[1/3] map, temperature 1"
    assert lines[1].startswith("  epoch 1: loss ")


def test_an_earlier_result_is_gone_on_with() -> None:
    first, second = Trial("mean_field"), Trial("mean_field", 0.1)
    kept: list[int] = []
    whole = run(first, second, epochs=1, keep=lambda one: kept.append(len(one["results"])))
    assert kept == [2, 4], "each trial is kept as soon as it is scored"
    half = run(first, epochs=1)
    lines: list[str] = []
    rest = run(first, second, epochs=1, previous=half, show=lines.append)
    assert lines[0].startswith("[2/2] mean_field, temperature 0.1, scales × 10")
    assert without_times(rest["results"]) == without_times(whole["results"])
    assert run(first, second, previous=rest, device="nowhere") is rest, "nothing is missing"


def test_results_from_before_there_were_learning_rates_are_gone_on_with() -> None:
    half = run(Trial("map"), epochs=1)
    for one in half["results"]:
        del one["rate_multiplier"]
    assert run(Trial("map"), previous=half, device="nowhere") is half
    lines: list[str] = []
    faster = Trial("map", rate_multiplier=3.0)
    whole = run(Trial("map"), faster, epochs=1, previous=half, show=lines.append)
    assert lines[0] == "[2/2] map, temperature 1, learning rate × 3"
    first, second = (one["history"][0]["loss"] for one in whole["results"])
    assert first != second


def test_the_held_out_images_choose() -> None:
    rows = [("map", "mean", 0.3, 0.1), ("map", "mean", 0.2, 0.9), ("map", "mean", float("nan"), 0)]
    rows.append(("mean_field", "mean", 0.5, 0.5))
    results = [
        {"method": m, "way": way, "held_out": {"nll": held}, "test": {"nll": test}}
        for m, way, held, test in rows
    ]
    assert variational.chosen(results) == [results[1], results[3]]


def test_every_trial_but_multipliers_for_map() -> None:
    found = variational.every_trial(["map", "mean_field"], [1.0, 0.1], [1.0, 30.0])
    assert found[:2] == [Trial("map", 1.0), Trial("map", 0.1)]
    assert found[2:] == [Trial("mean_field", t, m) for t in (1.0, 0.1) for m in (1.0, 30.0)]
    with pytest.raises(ValueError, match=r"Unknown method 'mean_feld'. Did you mean 'mean_field'"):
        variational.every_trial(["mean_feld"], [1.0], [1.0])
    with pytest.raises(ValueError, match=r"Unknown method 'sgd'.* Methods: map, mean_field, "):
        variational.every_trial(["sgd"], [1.0], known=tuple(variational_tasks.METHODS))
    rates = variational.every_trial(["adam"], [1.0, 0.1], [1.0, 30.0], [1.0, 3.0])
    assert rates == [Trial("adam"), Trial("adam", rate_multiplier=3.0)]


def test_the_price_is_half_the_curvature_times_the_variances() -> None:
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    net = nn.Linear(3, 2)
    learner = variational_laplace(net, CategoricalLikelihood(), num_data=100, exact=True)
    state = learner.init()
    probs = net(x).softmax(-1).detach()
    # The Fisher information of a linear softmax model: p (1 − p) x² for each class and input.
    sharp = torch.einsum("nc,nj->cj", probs * (1 - probs), x.square()) / 20
    bias = (probs * (1 - probs)).sum(0) / 20
    std = state.posterior.variance()
    expected = 0.5 * ((sharp * std["weight"]).sum() + (bias * std["bias"]).sum())
    found = variational._price(learner, state, x, y)
    assert_close(torch.tensor(found["price"]), expected.detach())
    assert variational._price(map(net, CategoricalLikelihood(), num_data=9), state, x, y) == {}


def test_too_few_images_are_refused() -> None:
    with pytest.raises(DataError, match="batches of 25, but only 10 examples are left"):
        run(Trial("map"), num=10)


class TestReading:
    """Files that trials are kept in."""

    FACTS = {"task": "small", "epochs": 2, "marks": (1, 2)}  # noqa: RUF012

    def test_nothing_where_there_is_no_file(self, tmp_path: Path) -> None:
        assert trials.read(tmp_path / "none.json", self.FACTS) is None

    @pytest.mark.parametrize("content", ["", "[]", '{"task": "small"}'])
    def test_another_file_is_left_alone(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "other.json"
        file.write_text(content)
        with pytest.raises(CheckpointError, match="holds no result of this benchmark"):
            trials.read(file, self.FACTS)

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({"task": "large"}, "holds results of large, not of small"),
            ({"epochs": 3}, "has trials with epochs=3, these are to have epochs=2"),
            ({"marks": [1]}, "has trials with marks="),
            ({"results": {}}, "holds no list of results but dict"),
        ],
    )
    def test_other_settings_are_not_mixed_in(
        self, tmp_path: Path, changed: dict[str, Any], expected: str
    ) -> None:
        file = tmp_path / "kept.json"
        file.write_text(json.dumps({**self.FACTS, "results": [], **changed}))
        with pytest.raises(CheckpointError, match=expected):
            trials.read(file, self.FACTS)

    def test_numbers_that_json_cannot_say_come_back(self, tmp_path: Path) -> None:
        file = tmp_path / "kept.json"
        file.write_text(json.dumps({**self.FACTS, "num": None, "results": [{"nll": [None, 1]}]}))
        found = trials.read(file, self.FACTS)
        assert found is not None
        assert found["num"] is None
        assert str(found["results"]) == "[{'nll': [nan, 1]}]"
