"""Models of scikit-learn as baselines: their numbers, and the noise that they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesrule.app import baselines
from bayesrule.app.baselines import Baseline
from bayesrule.predicting.evaluate import scores

linear_model = pytest.importorskip("sklearn.linear_model")

TASKS = ("regression", "classification")
EVERY = [(task, name) for task in TASKS for name in baselines.names(task)]


def data(task: str, rows: int, noise: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A curved function of the first of three features, or whether it is above zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    y = np.sin(2 * x[:, 0]) + noise * rng.normal(size=rows)
    found = torch.tensor(x, dtype=torch.float32)
    if task == "classification":
        return found, torch.tensor((y > 0).astype(np.int64))
    return found, torch.tensor(y, dtype=torch.float32).unsqueeze(1)


@pytest.mark.parametrize(("task", "name"), EVERY)
def test_every_baseline_is_scored_as_a_method_is(task: str, name: str) -> None:
    x, y = data(task, 150)
    fitted = Baseline(name, task).fit(x, y, 2)
    new, truth = data(task, 200, seed=1)
    prediction = fitted.predict(new)
    found = scores(prediction, truth)
    assert all(np.isfinite(value) for value in found.values())
    assert prediction.mean.dtype == torch.float32
    assert "scikit-learn's" in fitted.parts()["model"]
    torch.testing.assert_close(prediction.variance, prediction.components.variance[0])
    if task == "regression":
        assert 0.75 < found["coverage_90"] < 0.99
    constant = scores(Baseline("constant", task).fit(x, y, 2).predict(new), truth)
    better, than = ("log_likelihood", 1) if task == "regression" else ("nll", -1)
    # A straight line is of little use for a sine, but the others see it.
    if name in ("gradient boosting", "random forest", "gaussian process"):
        assert than * found[better] > than * constant[better]


def test_the_constant_is_the_mean_or_the_shares() -> None:
    x, y = data("regression", 50)
    prediction = Baseline("constant", "regression").fit(x, y, 1).predict(x[:4])
    torch.testing.assert_close(prediction.mean, y.mean().expand(4, 1))
    torch.testing.assert_close(prediction.std, y.std().expand(4, 1), rtol=0.05, atol=0)
    x, labels = data("classification", 50)
    shares = labels.bincount() / 50
    prediction = Baseline("constant", "classification").fit(x, labels, 2).predict(x[:4])
    torch.testing.assert_close(prediction.probs, shares.expand(4, 2))


def test_bayesian_ridge_tells_its_own_error_from_the_noise() -> None:
    x, y = data("regression", 60)
    prediction = Baseline("bayesian ridge", "regression").fit(x, y, 1).predict(x)
    rows = x.double().numpy()
    model = linear_model.BayesianRidge().fit(rows, y.reshape(-1).numpy())
    mean, deviation = model.predict(rows, return_std=True)
    np.testing.assert_allclose(prediction.mean.squeeze(1), mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prediction.std.squeeze(1), deviation, rtol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric.squeeze(1), 1 / model.alpha_, rtol=1e-4)
    assert (prediction.epistemic > 0).all()


@pytest.mark.parametrize("name", ["gradient boosting", "random forest"])
def test_the_noise_is_that_of_rows_a_model_did_not_see(name: str) -> None:
    """On pure noise such a model fits its own rows well; its residuals there would claim little."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 3, generator=generator), torch.randn(200, 1, generator=generator)
    fitted = Baseline(name, "regression").fit(x, y, 1)
    on_its_own_rows = float((fitted.predict(x).mean - y).square().mean().sqrt())
    claimed = float(fitted.predict(x).aleatoric.sqrt().mean())
    assert on_its_own_rows < 0.75
    assert 0.95 < claimed < 1.4


def test_a_class_without_a_vote_is_not_impossible() -> None:
    x = torch.cat([torch.full((30, 1), -5.0), torch.full((30, 1), 5.0)])
    y = torch.tensor([0] * 30 + [1] * 30)
    probs = Baseline("random forest", "classification").fit(x, y, 2).predict(x).probs
    torch.testing.assert_close(probs[0], torch.tensor([101 / 102, 1 / 102]))


def test_too_many_rows_are_an_obstacle_to_a_gaussian_process() -> None:
    assert baselines.obstacles("regression", 1000, 1) == {}
    (why,) = baselines.obstacles("regression", 1001, 1).values()
    assert why == "it takes at most 1,000 training rows, and here are 1,001"
    assert baselines.obstacles("classification", 1000, 2) == {}
    assert list(baselines.obstacles("classification", 500, 10)) == ["gaussian process"]


def test_the_seed_decides() -> None:
    x, y = data("regression", 60)

    def mean(seed: int) -> Tensor:
        return Baseline("random forest", "regression", seed).fit(x, y, 1).predict(x).mean

    assert torch.equal(mean(1), mean(1))
    assert not torch.equal(mean(1), mean(2))


def test_trees_of_a_forest_are_smaller_in_large_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    forest = Baseline("random forest", "regression")
    whole = forest.fit(x, x[:, :1], 1).model
    monkeypatch.setattr(baselines, "_MOST_IN_WHOLE_TREES", 50)
    smaller = forest.fit(x, x[:, :1], 1).model
    leaves = [sum(tree.get_n_leaves() for tree in one.estimators_) for one in (whole, smaller)]
    assert leaves[1] < 0.4 * leaves[0]
    assert Baseline("gradient boosting", "regression").fit(x, x[:, :1], 1).noise is not None
