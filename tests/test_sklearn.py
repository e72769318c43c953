"""The scikit-learn estimators: the ecosystem's own checks, then the promises beyond them."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import bayesrule as br
from bayesrule.sklearn import BayesClassifier, BayesRegressor

QUICK: dict[str, Any] = {"hidden": (8,), "epochs": 12, "learning_rate": 0.3, "random_state": 0}
LEARNED: dict[str, Any] = {**QUICK, "method": "laplace", "epochs": 20, "learning_rate": 0.05}
Array = NDArray[np.float64]
Line = tuple[Array, Array]
Blobs = tuple[Array, NDArray[np.str_]]


CLOSED_FORM: dict[str, Any] = {"method": "tagi", "hidden": (8,), "epochs": 20, "random_state": 0}


def _known_failures(_: Any) -> dict[str, str]:
    reason = "other rows make other batches; in one batch of all rows it is so, see below"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [
        kind(**given)
        for kind in (BayesRegressor, BayesClassifier)
        for given in (LEARNED, CLOSED_FORM)
    ],
    expected_failed_checks=_known_failures,
)
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture
def line() -> Line:
    """y = 1000 + 50 x₀ − 20 x₁ + noise of 5, inputs far from standard."""
    rng = np.random.default_rng(0)
    X = rng.normal([3.0, -200.0], [2.0, 30.0], size=(60, 2))
    y = 1000.0 + 50.0 * X[:, 0] - 20.0 * X[:, 1] + 5.0 * rng.standard_normal(60)
    return X, y


@pytest.fixture
def blobs() -> Blobs:
    rng = np.random.default_rng(1)
    labels = np.array(["ant", "bee", "cat"])[np.arange(60) % 3]
    centres = {"ant": (0.0, 0.0), "bee": (4.0, 0.0), "cat": (0.0, 4.0)}
    return np.array([centres[one] for one in labels]) + rng.normal(size=(60, 2)), labels


def own_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, outputs))


def own_method(
    model: nn.Module, likelihood: br.likelihoods.Likelihood, **settings: Any
) -> br.Learner:
    return br.ogn(model, likelihood, learning_rate=0.1, **settings)


def test_ridge_agrees_with_sklearns_bayesian_ridge(line: Line) -> None:
    X, y = line
    mean, std = BayesRegressor("ridge", prior_precision=1e-3).fit(X, y).predict(X, return_std=True)
    expected, spread = BayesianRidge().fit(X, y).predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=0.01 * y.std())
    # The Gamma(6, 6) prior of the noise, in units of y, keeps ours above theirs.
    assert (std > spread).all()
    assert std.max() < y.std()


def test_predictions_follow_the_units_of_the_data(line: Line) -> None:
    X, y = line
    model = BayesRegressor(**QUICK).fit(X, y)
    moved = BayesRegressor(**QUICK).fit(10.0 * X - 7.0, 1e6 + 100.0 * y)
    mean, std = model.predict(X, return_std=True)
    mean2, std2 = moved.predict(10.0 * X - 7.0, return_std=True)
    np.testing.assert_allclose(mean2, 1e6 + 100.0 * mean, rtol=1e-6)
    np.testing.assert_allclose(std2, 100.0 * std, rtol=1e-6)
    shift = model.log_likelihood(X, y) - moved.log_likelihood(10.0 * X - 7.0, 1e6 + 100.0 * y)
    assert shift == pytest.approx(np.log(100.0), abs=1e-5)


@pytest.mark.parametrize("settings", [{"method": "vogn"}, {"method": "laplace", "hidden": 20}])
def test_intervals_hold_as_much_as_they_say(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(600, 1))
    y = 10.0 * np.sin(X[:, 0]) + 5.0 * rng.normal(size=600)
    X, y, new, unseen = X[:300], y[:300], X[300:], y[300:]
    model = BayesRegressor(**settings, steps=600, random_state=0, learning_rate=0.05).fit(X, y)
    low, high = model.predict_interval(new, level=0.8)
    # 240 of 300 expected, with a standard deviation of 7; the prior widens them a little.
    assert 0.74 < np.mean((low < unseen) & (unseen < high)) < 0.88
    assert model.score(new, unseen) > 0.55
    epistemic, aleatoric = model.predict_uncertainty([[0.0], [10.0]])
    assert epistemic[1] > 4.0 * epistemic[0]
    np.testing.assert_allclose(aleatoric, 25.0, rtol=0.25)


def test_all_views_of_a_prediction_agree(line: Line) -> None:
    X, y = line
    model = BayesRegressor(**LEARNED).fit(X, y)
    quantiles = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert (quantiles.shape, quantiles.dtype) == ((3, 60), np.float64)
    np.testing.assert_allclose(quantiles[[0, 2]], model.predict_interval(X, 0.9))
    np.testing.assert_allclose(model.predict_quantiles(X, 0.5), model.predict(X))
    found = model.predict_distribution(X)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, found.mean[:, 0])
    epistemic, aleatoric = model.predict_uncertainty(X)
    np.testing.assert_allclose(epistemic + aleatoric, std**2)
    assert model.log_likelihood(X, y) == pytest.approx(
        float(found.log_prob(torch.tensor(y)).mean())
    )
    assert float(model.predict_distribution(X, how=br.AtMean()).epistemic.max()) == 0.0


def test_weight_draws_are_the_same_for_every_row(line: Line) -> None:
    X, y = line
    model = BayesRegressor(**QUICK).fit(X, y)
    assert model.run_.learner.predictive == br.Draws(32)
    np.testing.assert_allclose(model.predict(X)[7:9], model.predict(X[7:9]), rtol=1e-12)


def test_several_targets_keep_their_shape_and_scale(line: Line) -> None:
    X, y = line
    both = np.column_stack([y, -0.001 * y])
    model = BayesRegressor("ridge").fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == both.shape
    np.testing.assert_allclose(mean[:, 1], -0.001 * mean[:, 0], rtol=1e-6)
    assert model.predict_quantiles(X[:4], [0.1, 0.9]).shape == (2, 4, 2)
    assert BayesRegressor("ridge").fit(X, y[:, None]).predict(X).shape == (60, 1)


def test_noise_may_depend_on_the_inputs() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, size=(300, 1))
    y = 100.0 + (0.1 + 5.0 * X[:, 0]) * rng.normal(size=300)
    model = BayesRegressor(likelihood="heteroscedastic", steps=600, random_state=0).fit(X, y)
    _, aleatoric = model.predict_uncertainty([[0.05], [0.95]])
    assert aleatoric[1] > 10.0 * aleatoric[0]


def test_counts_are_learned_as_they_are() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 2.0, size=(200, 1))
    y = rng.poisson(np.exp(X[:, 0]))
    model = BayesRegressor("laplace", likelihood="poisson", steps=600, random_state=0).fit(X, y)
    assert model.target_scaler_ is None
    np.testing.assert_allclose(model.predict([[0.0], [2.0]]), [1.0, np.e**2], rtol=0.35)
    low, _ = model.predict_interval(X)
    np.testing.assert_array_equal(low, low.round())


def test_without_standardising_the_numbers_stay_as_they_are(line: Line) -> None:
    X, y = (line[0] - line[0].mean(0)) / line[0].std(0), (line[1] - line[1].mean()) / line[1].std()
    plain = BayesRegressor(standardise=False, **QUICK).fit(X, y)
    assert plain.target_scaler_ is None
    np.testing.assert_allclose(plain.predict(X), BayesRegressor(**QUICK).fit(X, y).predict(X))


def test_constant_columns_and_constant_targets_do_no_harm() -> None:
    X = np.column_stack([np.full(20, 0.1), np.arange(20.0)])
    assert np.isfinite(BayesRegressor("ridge").fit(X, np.arange(20.0)).predict(X)).all()
    np.testing.assert_allclose(BayesRegressor("ridge").fit(X, np.full(20, 7.0)).predict(X), 7.0)


@pytest.mark.parametrize("kind", [str, bool, float])
def test_classes_of_any_label(kind: type, blobs: Blobs) -> None:
    X, names = blobs
    labels = names if kind is str else (names == "bee").astype(kind)
    model = BayesClassifier(**LEARNED).fit(X, labels)
    assert model.classes_.tolist() == sorted(set(labels.tolist()))
    assert model.predict(X).dtype == labels.dtype
    assert model.score(X, labels) > 0.85
    probabilities = model.predict_proba(X)
    assert (probabilities.shape, probabilities.dtype) == ((60, len(model.classes_)), np.float64)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(probabilities))
    picked = probabilities[np.arange(60), np.searchsorted(model.classes_, labels)]
    assert model.log_likelihood(X, labels) == pytest.approx(np.log(picked).mean(), abs=1e-6)


@pytest.mark.parametrize("method", ["vogn", "laplace"])
def test_uncertainty_of_classes_adds_up(method: str, blobs: Blobs) -> None:
    X, labels = blobs
    model = BayesClassifier(**{**LEARNED, "method": method}).fit(X, labels)
    epistemic, aleatoric = model.predict_uncertainty(X)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(epistemic + aleatoric, 1.0 - (probabilities**2).sum(1), atol=1e-9)
    assert min(epistemic.min(), aleatoric.min()) > 0.0


def test_early_stopping_holds_rows_out(line: Line) -> None:
    X, y = line
    settings: dict[str, Any] = {**QUICK, "epochs": 200, "patience": 3, "validation_fraction": 0.25}
    model = BayesRegressor(**settings).fit(X, y)
    assert model.run_.learner.num_data == 45
    assert len(model.run_.history) < 200
    with pytest.raises(ValueError, match=r"1\.5"):
        BayesRegressor(**{**settings, "validation_fraction": 1.5}).fit(X, y)


def test_tagi_learns_without_being_told_how_long(line: Line, blobs: Blobs) -> None:
    X, y = line
    model = BayesRegressor("tagi", random_state=0).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 0.1 * y.std()
    assert std.min() > 0.0
    found = model.predict_distribution(X, how=br.Moments())
    np.testing.assert_allclose(found.mean.numpy().ravel(), mean)
    X, labels = blobs
    assert BayesClassifier("tagi", random_state=0).fit(X, labels).score(X, labels) > 0.85
    with pytest.raises(ValueError, match="tagi has no option learning_rate; it takes activations"):
        BayesClassifier("tagi", learning_rate=0.1).fit(X, labels)


@pytest.mark.parametrize("method", [" VOGN ", br.vogn])
def test_names_and_functions_are_the_same_method(method: Any, line: Line) -> None:
    X, y = line
    expected = BayesRegressor("vogn", **QUICK).fit(X, y).predict(X)
    np.testing.assert_array_equal(BayesRegressor(method, **QUICK).fit(X, y).predict(X), expected)


def test_a_method_and_a_network_of_ones_own(line: Line) -> None:
    X, y = line
    settings: dict[str, Any] = {"epochs": 20, "random_state": 0}
    before = torch.random.get_rng_state()
    model = BayesRegressor(own_method, network=own_network, **settings).fit(X, y)
    assert [type(part) for part in model.run_.learner.model.children()][1] is nn.Tanh
    assert next(iter(model.run_.state.posterior.mean.values())).dtype == torch.float32
    assert model.predict(X).dtype == np.float64
    again = BayesRegressor(own_method, network=own_network, **settings).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    other = BayesRegressor(own_method, network=own_network, epochs=20, random_state=1).fit(X, y)
    assert not np.array_equal(model.predict(X), other.predict(X))
    assert torch.equal(torch.random.get_rng_state(), before)
    partial = functools.partial(br.vogn, learning_rate=0.3)
    assert BayesRegressor(partial, **settings).fit(X, y).run_.learner.rule.learning_rate == 0.3


def test_options_reach_the_method(line: Line) -> None:
    X, y = line
    chosen: dict[str, Any] = {"prior_precision": 5.0, "temperature": 0.5, "options": {"draws": 3}}
    learner = BayesRegressor(**chosen, **QUICK).fit(X, y).run_.learner
    assert (learner.prior_precision, learner.temperature) == (5.0, 0.5)
    assert learner.expectation == br.Draws(3)
    assert BayesRegressor("adam", **QUICK).fit(X, y).run_.learner.prior_precision == 0.0
    with pytest.raises(ValueError, match=r"vogn has no option drawz; it takes draws, "):
        BayesRegressor(options={"drawz": 3}).fit(X, y)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_unfit_numbers_are_named_by_column_and_row(value: float, line: Line) -> None:
    X, y = line
    what = {"nan": "NaN", "-inf": "infinity"}.get(str(value), r"1e\+300")
    frame = pd.DataFrame(X, columns=["age", "height"])
    model = BayesRegressor("ridge").fit(frame, y)
    assert model.feature_names_in_.tolist() == ["age", "height"]
    frame.loc[7, "height"] = value
    with pytest.raises(ValueError, match=f"X contains {what} in column 'height', row 7"):
        model.predict(frame)
    with pytest.raises(ValueError, match=f"X contains {what} in column 1, row 7"):
        BayesRegressor("ridge").fit(frame.to_numpy(), y)
    with pytest.raises(ValueError, match=r"y contains 1e\+200 in column 0, row 3"):
        BayesRegressor("ridge").fit(X, np.where(np.arange(60) == 3, 1e200, y))


def test_errors_say_what_is_taken(line: Line, blobs: Blobs) -> None:
    with pytest.raises(ValueError, match=r"takes the likelihoods gaussian, .*'categorical'"):
        BayesRegressor().set_params(likelihood="categorical").fit(*line)
    with pytest.raises(ValueError, match=r"two or more classes, got one class only: \['ant'\]"):
        BayesClassifier().fit(blobs[0][::3], blobs[1][::3])
    with pytest.raises(ValueError, match=r"Unknown method 'vogm'\. Did you mean 'vogn'"):
        BayesRegressor("vogm").fit(*line)
    with pytest.raises(ValueError, match="epochs is a whole number of at least 1, got 0"):
        BayesRegressor(epochs=0).fit(*line)
    with pytest.raises(ValueError, match="sample_weight has numbers from 0 up"):
        BayesRegressor().fit(*line, sample_weight=-np.ones(60))
    model = BayesClassifier(**QUICK).fit(*blobs)
    with pytest.raises(ValueError, match="dog"):
        model.log_likelihood(blobs[0][:1], ["dog"])


def test_weights_are_as_repeated_rows_where_all_rows_are_one_batch(
    line: Line, blobs: Blobs
) -> None:
    for kind, (X, y) in ((BayesRegressor, line), (BayesClassifier, blobs)):
        method = "ridge" if kind is BayesRegressor else "newton"
        options: dict[str, Any] = {"batch_size": 1000, "epochs": 50, "random_state": 0}
        weight = np.random.default_rng(0).integers(0, 3, len(y))
        found = kind(method, **options).fit(X, y, sample_weight=weight)
        rows = np.repeat(np.arange(len(y)), weight)
        expected = kind(method, **options).fit(X[rows], y[rows])
        if kind is BayesRegressor:
            both = (model.predict(X, return_std=True) for model in (found, expected))
            means, stds = zip(*both, strict=True)
            np.testing.assert_allclose(means[0], means[1], rtol=1e-6)
            np.testing.assert_allclose(stds[0], stds[1], rtol=1e-4)
        else:
            probs = [model.predict_proba(X) for model in (found, expected)]
            np.testing.assert_allclose(probs[0], probs[1], rtol=1e-6)


def test_class_weights_are_weights_of_rows(blobs: Blobs) -> None:
    X, y = blobs
    options: dict[str, Any] = {"method": "newton", "random_state": 0, "epochs": 20}
    rare = (y != "ant") | (np.arange(len(y)) < 6)
    X, y = X[rare], y[rare]
    balanced = BayesClassifier(class_weight="balanced", **options).fit(X, y)
    weight = {label: len(y) / (3 * np.sum(y == label)) for label in np.unique(y)}
    named = BayesClassifier(class_weight=weight, **options).fit(X, y)
    rows = BayesClassifier(**options).fit(X, y, sample_weight=[weight[label] for label in y])
    probs = [model.predict_proba(X) for model in (balanced, named, rows)]
    np.testing.assert_allclose(probs[0], probs[1])
    np.testing.assert_allclose(probs[0], probs[2])
    plain = BayesClassifier(**options).fit(X, y).predict_proba(X)
    assert probs[0][:, 0].mean() > plain[:, 0].mean()


def test_a_fit_that_fails_leaves_nothing_half_fitted(line: Line) -> None:
    X, y = line
    model = BayesRegressor("ridge").fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(X, np.nan), y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_the_same_random_state_gives_the_same_result(line: Line) -> None:
    X, y = line

    def predicted(random_state: Any) -> Array:
        return BayesRegressor(**{**QUICK, "random_state": random_state}).fit(X, y).predict(X)

    np.testing.assert_array_equal(predicted(3), predicted(3))
    stream = np.random.RandomState(3)
    first, second = predicted(stream), predicted(stream)
    np.testing.assert_array_equal(first, predicted(3))
    assert not np.array_equal(first, second)
    before = np.random.get_state()  # noqa: NPY002 (scikit-learn's convention for None)
    np.random.seed(3)  # noqa: NPY002
    from_global = predicted(None)
    np.random.set_state(before)  # noqa: NPY002
    np.testing.assert_array_equal(from_global, predicted(3))


def test_fitted_estimators_are_copied_and_saved(line: Line, tmp_path: Path) -> None:
    X, y = line
    model = BayesRegressor(**QUICK).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    expected = model.predict(X)
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict(X), expected)
    np.testing.assert_array_equal(copy.deepcopy(model).predict(X), expected)


def test_settings_are_read_set_and_cloned() -> None:
    assert "likelihood" not in BayesClassifier().get_params()
    assert repr(BayesRegressor(epochs=3)) == "BayesRegressor(epochs=3)"
    model = BayesRegressor("laplace", options={"online": True}).set_params(hidden=(3, 4))
    assert clone(model).get_params() == model.get_params() | {"hidden": (3, 4)}


def test_searches_pipelines_and_cross_validation() -> None:
    X, y = load_iris(return_X_y=True)
    grid = {"method": ["laplace", "map"], "epochs": np.array([1, 30])}
    search = GridSearchCV(BayesClassifier(**LEARNED), grid, cv=2).fit(X, y)
    assert search.best_params_["epochs"] == 30
    assert search.best_score_ > 0.85
    pipeline = make_pipeline(MinMaxScaler(), BayesClassifier(**LEARNED))
    assert (cross_val_score(pipeline, X, y, cv=2) > 0.8).all()
    by_likelihood = {"cv": 2, "scoring": lambda model, *data: model.log_likelihood(*data)}
    assert (cross_val_score(pipeline[1], X, y, **by_likelihood) > np.log(1.0 / 3.0)).all()


def test_fits_in_parallel_threads_equal_those_one_by_one(line: Line) -> None:
    X, y = line
    settings: dict[str, Any] = {"network": own_network, "epochs": 12}
    models = [BayesRegressor(**settings, random_state=seed) for seed in range(4)]
    expected = [clone(model).fit(X, y).predict(X) for model in models]
    before = torch.random.get_rng_state()
    with joblib.parallel_config(backend="threading", n_jobs=4):
        fitted = joblib.Parallel()(joblib.delayed(model.fit)(X, y) for model in models)
    for model, alone in zip(fitted, expected, strict=True):
        np.testing.assert_array_equal(model.predict(X), alone)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_missing_sklearn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "bayesrule.sklearn")
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[front\]'"):
        importlib.import_module("bayesrule.sklearn")
