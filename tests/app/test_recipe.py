"""Recipes: their arithmetic, their learners, and their text form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesrule import Dense, schedules
from bayesrule.app.recipe import Recipe
from bayesrule.learner import Learner
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    Likelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
)
from bayesrule.methods import METHODS, Need, option_names, record
from bayesrule.rules import Elbo, Natural
from bayesrule.training import checkpoint

X = torch.linspace(-1.0, 1.0, 24).reshape(12, 2)
# Name, class, network outputs for the targets, number of targets, targets.
CASES = [
    ("gaussian", GaussianLikelihood, 2, 2, X.sin()),
    ("heteroscedastic", HeteroscedasticLikelihood, 4, 2, X.sin()),
    ("categorical", CategoricalLikelihood, 3, 3, torch.arange(12) % 3),
    ("bernoulli", BernoulliLikelihood, 1, 1, (torch.arange(12) % 2).float()),
    ("poisson", PoissonLikelihood, 1, 1, (torch.arange(12) % 4).float()),
    ("negative_binomial", NegativeBinomialLikelihood, 1, 1, (torch.arange(12) % 4).float()),
]


@pytest.mark.parametrize(
    ("num_data", "given", "epochs", "batch_size"),
    [
        (400, {}, 77, 32),  # 13 batches an epoch, 1000 / 13
        (3200, {}, 10, 32),  # 100 batches an epoch
        (64_000, {}, 10, 128),  # at least 10, and larger batches
        (40, {}, 500, 32),
        (10, {}, 1000, 10),  # at most 1000; a batch is no larger than the data
        (400, {"steps": 390}, 30, 32),
        (400, {"batch_size": 100}, 250, 100),
        (400, {"epochs": 7}, 7, 32),
        (400, {"method": "ridge"}, 30, 400),  # all data at once
        (400, {"method": "newton", "batch_size": 50, "epochs": 3}, 3, 50),
        (100, {"method": "tagi"}, 50, 32),
        (10, {"method": "tagi"}, 200, 10),
        (64_000, {"method": "TAGI"}, record("tagi").course.least, 128),
        (400, {"method": "tagi", "epochs": 99}, 99, 32),
    ],
)
def test_epochs_and_batch_size_for_data(
    num_data: int, given: dict, epochs: int, batch_size: int
) -> None:
    recipe = Recipe(**given).for_data(num_data)
    assert (recipe.epochs, recipe.batch_size) == (epochs, batch_size)
    # Once worked out, nothing changes any more.
    assert recipe.for_data(num_data) == recipe


def test_working_it_out_keeps_all_other_choices() -> None:
    before = Recipe("ivon", "poisson", (7, 5), patience=3, seed=9, options={"draws": 2})
    after = before.for_data(100)
    kept = ("method", "likelihood", "hidden", "steps", "patience", "seed", "options")
    assert all(getattr(before, name) == getattr(after, name) for name in kept)


def test_objects_among_the_options_survive() -> None:
    recipe = Recipe("laplace", options={"structure": Dense()}).for_data(12)
    assert recipe.options["structure"] == Dense()
    assert recipe.learner(2, 1, 12).parts()["posterior"] == "Dense"


@pytest.mark.parametrize(("name", "kind", "outputs", "targets", "y"), CASES)
def test_every_likelihood_trains(
    name: str, kind: type[Likelihood], outputs: int, targets: int, y: Tensor
) -> None:
    recipe = Recipe("vogn", name, hidden=(4,), epochs=2)
    learner = recipe.learner(2, targets, len(y))
    assert type(learner.likelihood) is kind
    assert learner.model(X).shape == (12, outputs)
    run = recipe.fit(X, y, targets)
    assert len(run.history) == 2
    assert run.predict(X).log_prob(y).isfinite().all()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains_and_its_step_size_falls_to_zero(method: str) -> None:
    recipe = Recipe(method, hidden=(3,), epochs=2, batch_size=5)
    rule = recipe.learner(2, 1, 12).rule
    assert isinstance(rule, Natural | Elbo) == ("learning_rate" in option_names(METHODS[method]))
    rate = rule.learning_rate if isinstance(rule, Natural | Elbo) else None
    if Need.LINEAR_MODEL in record(method).needs:
        assert recipe.linear
        assert not callable(rate)
    elif rate is not None:
        assert isinstance(rate, schedules.falling)
        assert isinstance(rule, Natural | Elbo)
        # Two epochs of three batches, as `fit` lets it fall.
        falls = schedules.as_schedule(rule.falling(0, 6).learning_rate)
        assert falls(0) > falls(3) > falls(6) == 0.0
    run = recipe.fit(X, X[:, :1], 1)
    assert run.state.step == 6


def test_a_given_learning_rate_is_the_top_of_the_cosine_or_the_schedule_itself() -> None:
    assert _rate(Recipe("map", options={"learning_rate": 0.5}))(0) == 0.5
    own = schedules.constant(0.25)
    assert _rate(Recipe("map", options={"learning_rate": own})) is own


def test_a_method_gets_only_the_options_it_has() -> None:
    with pytest.raises(ValueError, match=r"tagi has no option learning_rate; it takes .*gain"):
        Recipe("tagi", options={"learning_rate": 0.1}).learner(2, 1, 12)
    with pytest.raises(ValueError, match="vogn has no option drawz; it takes draws, "):
        Recipe("vogn", options={"drawz": 2}).learner(2, 1, 12)
    learner = Recipe("tagi", options={"gain": 0.5, "temperature": 2.0}).learner(2, 1, 12)
    assert learner.temperature == 2.0
    assert float(learner.init().posterior.variance()["0.weight"][0, 0]) == 0.125


def _rate(recipe: Recipe) -> schedules.Schedule:
    rule = recipe.learner(2, 1, 12).rule
    assert isinstance(rule, Natural | Elbo)
    assert callable(rule.learning_rate)
    return rule.learning_rate


def test_linear_methods_get_a_linear_model_and_find_the_ridge_solution() -> None:
    recipe = Recipe("ridge", hidden=(50,))
    learner: Learner = recipe.learner(2, 1, 12)
    assert sorted(k for k, _ in learner.model.named_parameters()) == ["0.bias", "0.weight"]
    y = X @ torch.tensor([[2.0], [-1.0]])
    run = recipe.fit(X, y, 1)
    a, b = run.state.likelihood["a"], run.state.likelihood["b"]
    design = torch.cat([X, torch.ones(12, 1)], 1)
    # Thirty full steps of averaging 1 settle on the ridge solution of their own noise.
    expected = torch.linalg.solve(a / b * design.mT @ design + torch.eye(3), a / b * design.mT @ y)
    found = torch.cat(
        [run.state.posterior.mean["0.weight"], run.state.posterior.mean["0.bias"][None]], 1
    )
    torch.testing.assert_close(found.mT, expected, rtol=1e-3, atol=1e-4)


def test_text_and_back() -> None:
    recipe = Recipe("adam", "categorical", (7, 5), 3, 100, 16, 2, 1, {"rate": 0.1})
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert Recipe.from_json(Recipe().to_json()) == Recipe()


def test_options_that_are_objects_have_no_text() -> None:
    with pytest.raises(TypeError, match=r"options .*Dense.* cannot be written down"):
        Recipe("laplace", options={"structure": Dense()}).to_json()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "vogm"}, "Did you mean 'vogn'"),
        ({"likelihood": "gauss"}, "Unknown likelihood 'gauss'. Known: .*, gaussian, "),
        ({"epochs": 0}, "epochs is a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size is a whole number of at least 1, got 2.5"),
        ({"steps": -1}, "steps is a whole number of at least 1, got -1"),
    ],
)
def test_bad_choices_are_refused_at_once(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**given)


def test_no_data_is_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        Recipe().for_data(0)


def test_a_finished_recipe_is_not_trained_again(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an epoch was trained")

    recipe = Recipe("laplace", hidden=(3,), epochs=2)
    first = recipe.fit(X, X[:, :1], 1, out=tmp_path)
    again = recipe.fit(X, X[:, :1], 1, out=tmp_path, callback=refuse)
    assert checkpoint.same(first.state, again.state)
    assert checkpoint.same(first.state, recipe.fit(X, X[:, :1], 1).state)


def test_recipes_of_former_versions_have_the_activations_that_they_had() -> None:
    recipe = Recipe("variational_laplace", hidden=(3,))
    sharp = recipe.network(2, 1)[1]
    assert sharp.beta == 10.0
    assert Recipe.from_json(recipe.to_json()).network(2, 1)[1].beta == 10.0
    former = {k: v for k, v in json.loads(recipe.to_json()).items() if k != "bend"}
    assert Recipe.from_json(json.dumps(former)).network(2, 1)[1].beta == 1.0
