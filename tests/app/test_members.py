"""Ensembles of tables: nets from other first weights, averaged, kept in one folder, exported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from calling import call, only_line, table

from bayesrule.app.recipe import Recipe
from bayesrule.app.saved import read_model
from bayesrule.methods import METHODS, record
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.types import State

X = torch.linspace(-1.0, 1.0, 40).reshape(40, 1)
Y = torch.sin(3.0 * X)
OPEN = Recipe("mean_field", hidden=(3,))
QUICK = ["--hidden", "3", "--epochs", "4", "--temperature", "1"]


def words(folder: Path, *more: str, out: str = "run") -> list[str]:
    given = [table(folder), "--target", "price", "--out", folder / out]
    return ["fit", *map(str, given), *QUICK, *more]


def test_members_are_trainings_from_other_first_weights() -> None:
    recipe = Recipe("vogn", hidden=(3,), epochs=3, members=3, options={"temperature": 1.0})
    run = recipe.fit(X, Y, 1, progress=False)
    alone = Recipe("vogn", hidden=(3,), epochs=3, options={"temperature": 1.0})
    first = alone.fit(X, Y, 1, progress=False)
    assert len(run.states) == 3
    for name, mean in first.state.posterior.mean.items():
        torch.testing.assert_close(mean, run.state.posterior.mean[name])
        assert len({state.posterior.mean[name].sum().item() for state in run.states}) == 3


def test_the_prediction_is_the_equal_mixture_of_those_of_the_members() -> None:
    recipe = Recipe("vogn", hidden=(3,), epochs=3, members=3, options={"temperature": 1.0})
    run = recipe.fit(X, Y, 1, progress=False)
    each = [type(run)(run.learner, state).predict(X) for state in run.states]
    together = run.predict(X)
    densities = torch.stack([one.log_prob(Y) for one in each]).exp().mean(0)
    torch.testing.assert_close(together.log_prob(Y), densities.log())
    means = torch.stack([one.mean for one in each])
    within = torch.stack([one.epistemic for one in each]).mean(0)
    torch.testing.assert_close(together.mean, means.mean(0))
    torch.testing.assert_close(together.epistemic, within + means.var(0, correction=0))
    # By Jensen's inequality a mixture is at least as good as its members on average.
    scores = [one.log_prob(Y).mean() for one in each]
    assert together.log_prob(Y).mean() >= torch.stack(scores).mean()
    assert run.scores((X, Y))["log_likelihood"] == pytest.approx(together.log_prob(Y).mean().item())


def test_beliefs_are_ensembles_where_nobody_says_how_long_training_is() -> None:
    assert OPEN.chosen(X, Y, 1).members == record("mean_field").course.members == 5
    for one in (Recipe("map"), Recipe("ridge"), Recipe("vogn", epochs=2), Recipe("vogn", steps=9)):
        assert one.chosen(X, Y, 1).members == 1
    assert {name for name in METHODS if record(name).course.members == 1} >= {"map", "adam", "sgd"}


def test_a_linear_model_has_one_optimum_and_so_one_member() -> None:
    run = Recipe("ridge", members=4).fit(X, Y, 1, progress=False)
    assert len(run.states) == 1


def test_how_sure_an_ensemble_is_follows_from_held_out_rows_of_all_members() -> None:
    alone = Recipe("mean_field", hidden=(3,), members=1).chosen(X, Y, 1)
    together = Recipe("mean_field", hidden=(3,), members=3).chosen(X, Y, 1)
    assert alone.calibration is not None
    assert together.calibration is not None
    assert (alone.epochs, alone.options) == (together.epochs, together.options)
    assert alone.calibration != together.calibration


def test_a_folder_keeps_all_members(tmp_path: Path) -> None:
    assert call(*words(tmp_path, "--members", "3")).code == 0
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["members"] == 3
    kept = read_model(tmp_path / "run")
    assert len(kept.run.states) == 3
    assert "3 nets" in call(*words(tmp_path, "--members", "3", out="other")).out


def test_an_ensemble_that_was_interrupted_is_no_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bayesrule.app.recipe.keep_members", interrupted)
        assert call(*words(tmp_path, "--members", "3")).code == 130
    with pytest.raises(CheckpointError, match="the same fit command continues"):
        read_model(tmp_path / "run")
    assert call(*words(tmp_path, "--members", "3")).code == 0
    assert call(*words(tmp_path, "--members", "3", out="whole")).code == 0
    again, whole = (read_model(tmp_path / name).run for name in ("run", "whole"))
    for one, other in zip(whole.states, again.states, strict=True):
        for name, mean in one.posterior.mean.items():
            assert torch.equal(mean, other.posterior.mean[name])


def test_a_missing_member_is_noticed(tmp_path: Path) -> None:
    assert call(*words(tmp_path, "--members", "3")).code == 0
    for number in (2, 3):
        folder = tmp_path / f"without-{number}"
        shutil.copytree(tmp_path / "run", folder)
        (folder / f"member-{number}.safetensors").unlink()
        with pytest.raises(CheckpointError):
            read_model(folder)


def test_a_former_recipe_has_one_net() -> None:
    values = json.loads(OPEN.to_json())
    del values["members"]
    assert Recipe.from_json(json.dumps(values)).members == 1


def test_misfits_are_refused_in_one_line(tmp_path: Path) -> None:
    both = only_line(call(*words(tmp_path, "--members", "3", "--patience", "2")))
    assert "Leave one of them out" in both
    linear = ["fit", str(table(tmp_path)), "--target", "price", "--method", "ridge"]
    assert "--members would have no effect" in only_line(call(*linear, "--members", "3"))
    assert "--members" in call(*words(tmp_path, "--members", "0")).err


def test_an_exported_ensemble_says_what_the_run_says() -> None:
    recipe = Recipe("vogn", hidden=(3,), epochs=3, members=3, options={"temperature": 1.0})
    run = recipe.fit(X, Y, 1, progress=False)
    found, wanted = run.exported(X)(X), run.predict(X)
    for name in ("mean", "epistemic", "aleatoric"):
        torch.testing.assert_close(found[name], getattr(wanted, name).to(found[name]))


def test_an_iterator_is_refused_which_one_member_alone_would_see() -> None:
    run = Recipe("map", hidden=(3,), epochs=2, members=2).fit(X, Y, 1, progress=False)
    with pytest.raises(TypeError, match="iterator"):
        run.predict(iter([X]))


def test_a_callback_sees_each_epoch_of_the_first_member() -> None:
    seen: list[tuple[float, float]] = []

    def note(learner: object, state: State, figures: dict[str, float]) -> None:
        seen.append((figures["epoch"], float(state.posterior.mean["0.bias"].sum())))

    recipe = Recipe("mean_field", hidden=(3,), epochs=3, options={"temperature": 1.0})
    recipe.fit(X, Y, 1, progress=False, callback=note)
    alone, seen[:] = list(seen), []
    replace(recipe, members=2).fit(X, Y, 1, progress=False, callback=note)
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(alone))
