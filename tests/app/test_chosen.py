"""What the front chooses by held-out rows: written down, said, and the same each time."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from calling import call, table
from safetensors.torch import load_file

from bayesrule.app.open_choices import HIDDEN
from bayesrule.app.recipe import Recipe
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import TEMPERED
from bayesrule.training import fit
from bayesrule.training.choosing import Choice
from bayesrule.training.warm_start import beginning

X = torch.linspace(-1.0, 1.0, 30).reshape(30, 1)
QUICK = ["--hidden", "3", "--epochs", "4"]


def words(folder: Path, *more: str, out: str = "run") -> list[Any]:
    return ["fit", table(folder), "--target", "price", "--out", folder / out, *QUICK, *more]


def test_a_recipe_chooses_a_temperature_once() -> None:
    recipe = Recipe("vogn", hidden=(3,), epochs=2)
    chosen = recipe.chosen(X, X.sin(), 1)
    assert chosen.options["temperature"] in TEMPERED.temperatures
    assert (chosen.epochs, chosen.batch_size) == (2, 30)
    assert chosen.chosen(X, X.sin(), 1) is not recipe
    assert chosen == recipe.chosen(X, X.sin(), 1) == chosen.chosen(X, X.sin(), 1)


def test_how_far_the_choice_is_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe("vogn", hidden=(3,), epochs=2)
    seen = recipe.chosen(X, X.sin(), 1, progress=True)
    assert "nets:" in capsys.readouterr().err
    assert seen == recipe.chosen(X, X.sin(), 1)
    assert capsys.readouterr().err == ""


def test_a_folder_of_another_method_is_refused_before_anything_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*words(tmp_path)).code == 0

    def chosen(*_: object, **__: object) -> Recipe:
        raise AssertionError

    monkeypatch.setattr(Recipe, "chosen", chosen)
    said = call(*words(tmp_path, "--method", "map"))
    assert said.code == 2
    assert "holds a run with method vogn, this one has method map" in said.err


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        # The most probable weights first, then at which temperature to go on from them.
        ({}, [(2, 2), (6, 2)]),
        ({"hidden": (3,)}, [(1, 2), (6, 2)]),
        ({"epochs": 3}, [(4, 1)]),
        ({"patience": 3}, [(4, 1)]),
        ({"steps": 9, "options": {"temperature": 0.5}}, []),
        ({"method": "map"}, [(2, 2)]),
        ({"method": "map", "hidden": (3,)}, [(1, 2)]),
        ({"method": "mean_field"}, [(8, 2)]),
        ({"method": "ridge"}, []),
    ],
)
def test_only_what_nobody_says_is_chosen(
    given: dict[str, Any], tried: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def noted(members: Any, data: Any, options: Any, epochs: Any, **_: Any) -> Choice:
        asked.append((sum(map(len, options)), len(epochs)))
        return Choice(options[-1][-1], epochs[-1], 0.0, runs=[[]] * len(members))

    monkeypatch.setattr("bayesrule.app.open_choices.choose", noted)
    recipe = Recipe(**given)
    chosen = recipe.chosen(X.repeat(2, 1), X.repeat(2, 1), 1)
    assert asked == tried
    assert recipe.length_is_open(60) == any(lengths > 1 for _, lengths in tried)
    assert chosen.warm_start == (1000 if len(tried) == 2 else None)
    assert chosen.hidden == given.get(
        "hidden", () if recipe.linear else HIDDEN[bool(recipe.is_open(60))]
    )
    assert chosen.epochs == (1000 if recipe.length_is_open(60) else recipe.for_data(60).epochs)


def test_a_belief_may_stay_at_the_most_probable_weights_and_learn_its_width() -> None:
    said = {"temperature": 0.1, "learning_rate": 0.0}
    assert said in Recipe("vogn").course.stay
    recipe = Recipe("vogn", hidden=(3,), epochs=40, warm_start=5, options=said)
    run = recipe.fit(X, X.sin(), 1)
    start = fit(beginning(recipe.learner(1, 1, 30)), (X, X.sin()), epochs=5, progress=False)
    for name, mean in start.state.posterior.mean.items():
        assert torch.equal(run.state.posterior.mean[name], mean)
    # With N / T = 300 the curvature of a layer is far above the prior's precision of one.
    assert all(float(v.mean()) < 0.1 for v in run.state.posterior.variance().values())


def test_a_prior_that_expects_far_more_noise_than_there_is_gives_way() -> None:
    recipe = Recipe("noisy_kfac", hidden=(), epochs=150)
    usual = recipe.learner(1, 1, 30).likelihood
    assert isinstance(usual, GaussianLikelihood)
    noise = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    found = recipe.chosen(X, X + 0.003 * noise, 1)
    assert found.noise_rate is not None
    assert found.noise_rate < 0.3 * usual.rate
    assert found.learner(1, 1, 30).likelihood == GaussianLikelihood(rate=found.noise_rate)
    assert Recipe.from_json(found.to_json()) == found
    assert recipe.chosen(X, X + noise, 1).noise_rate is None


def test_few_rows_are_all_trained_on() -> None:
    chosen = Recipe("vogn").chosen(X[:19], X[:19], 1)
    assert chosen == replace(Recipe("vogn").for_data(19), hidden=HIDDEN[0], members=1)


def test_the_command_says_what_was_chosen_and_writes_it_down(tmp_path: Path) -> None:
    said = call(*words(tmp_path))
    assert said.code == 0, said.err
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    recipe = json.loads((tmp_path / "run" / "model.json").read_text())["recipe"]
    temperature = recipe["options"]["temperature"]
    assert document["chosen"] == {"temperature": temperature}
    assert f"Chosen by held-out rows: temperature {temperature:g}.\n" in said.out
    assert recipe["epochs"] == 4
    given = call(*words(tmp_path, "--temperature", "0.5", "--json", out="other"))
    assert json.loads(given.out)["chosen"] == {}


def test_an_interrupted_command_goes_on_with_what_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(learner: object, state: object, figures: dict[str, float]) -> None:
        if figures["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    real = Recipe.fit
    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "fit", lambda *a, **b: real(*a, **b, callback=interrupt))
        stopped = call(*words(tmp_path))
    assert stopped.code == 130
    assert "holds 2 of 4 epochs" in stopped.err
    before = (tmp_path / "run" / "model.json").read_text()

    def choose(*_: object, **__: object) -> Choice:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr("bayesrule.app.open_choices.choose", choose)
        again = call(*words(tmp_path))
    assert again.code == 0, again.err
    assert "holds 2 of them already" in again.out
    assert (tmp_path / "run" / "model.json").read_text() == before
    assert call(*words(tmp_path, out="whole")).code == 0
    one, other = (load_file(tmp_path / name / "final.safetensors") for name in ("run", "whole"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_help_says_what_is_chosen() -> None:
    said = " ".join(call("fit", "--help").out.split()).replace("- ", "-")
    best = "whichever predicts held-out rows best"
    assert f"default: 1000 or 4000, {best} (30 for newton, 30 for ridge" in said
    assert f"default: 1.0, 0.3, 0.1 or 0.03, {best} (" in said
