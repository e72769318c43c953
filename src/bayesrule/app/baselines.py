"""What a user would take instead: models of scikit-learn, scored in the same way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.likelihoods import CategoricalLikelihood, GaussianLikelihood
from bayesrule.predicting.prediction import Prediction

Floats = NDArray[np.float64]

_PROCESS = "gaussian process"
_MOST_ROWS = 1_000  # a Gaussian process takes time cubic in the rows, for each class
_MOST_LABELS = 2_000
# With more rows than this, leaves of a forest have at least five. Whole trees would take gigabytes.
_MOST_IN_WHOLE_TREES = 50_000
_MOST_LENGTHS = 20  # with more features than this, one length scale for all saves time
# In units of the target's spread: a model that repeats its rows exactly is still not certain.
_LEAST_NOISE = 1e-4


def names(task: str) -> list[str]:
    """The baselines for a task, the simplest first."""
    return list(_models(task))


def obstacles(task: str, rows: int, outputs: int) -> dict[str, str]:
    """The baselines that would take too long on so many training rows and classes, and why."""
    if rows <= _MOST_ROWS and rows * outputs <= _MOST_LABELS:
        return {}
    most = f"at most {_MOST_ROWS:,} training rows"
    if task == "classification":
        most += f" and {_MOST_LABELS:,} rows times classes"
    return {_PROCESS: f"it takes {most}, and here are {rows:,}"}


@dataclass(frozen=True)
class Baseline:
    """A scikit-learn model by its name; it stands in for a `Recipe` in a comparison."""

    method: str
    task: str
    seed: int = 0
    epochs: ClassVar[int] = 1

    def for_data(self, num_data: int) -> Baseline:
        """Imports scikit-learn, so that loading it does not count as training time."""
        _models(self.task)
        return self

    def chosen(self, x: Tensor, y: Tensor, targets: int) -> Baseline:
        """Itself: a baseline has no settings to choose on held-out rows."""
        return self

    def fit(self, x: Tensor, y: Tensor, targets: int, **_: Any) -> FittedBaseline:
        """Trains on the data of a recipe: standardised x (n, d), y (n, 1) or classes (n,)."""
        rows, observed = _array(x), y.reshape(-1).numpy()
        model = _models(self.task, x.shape[0], x.shape[1], self.seed)[self.method]
        with _quietly_on_one_core():
            model.fit(rows, observed)
            if self.task == "classification":
                return FittedBaseline(model)
            return FittedBaseline(model, max(_noise(model, rows, observed), _LEAST_NOISE))


@dataclass(frozen=True)
class FittedBaseline:
    """A trained model of scikit-learn; `noise` is a standard deviation, None for classes."""

    model: Any
    noise: float | None = None

    def parts(self) -> dict[str, str]:
        """The name of the model, where a method lists its parts."""
        return {"model": f"scikit-learn's {type(self.model).__name__}"}

    def predict(self, x: Tensor) -> Prediction:
        """The prediction for new inputs."""
        with _quietly_on_one_core():
            if self.noise is None:
                return _classes(self.model, x)
            return _numbers(self.model, x, self.noise)


def _numbers(model: Any, x: Tensor, noise: float) -> Prediction:
    """Gaussian predictions: the model's own variance is epistemic, the noise aleatoric."""
    mean, epistemic = _mean_and_variance(model, _array(x), noise)
    column = torch.from_numpy(np.stack([mean, epistemic])).to(x.dtype).unsqueeze(-1)
    marginal = GaussianLikelihood(noise=noise).marginal(column[0], column[1], {})
    return Prediction.closed_form(marginal)


def _classes(model: Any, x: Tensor) -> Prediction:
    """The classifier's own probabilities."""
    probs = model.predict_proba(_array(x))
    # Each class of a forest gets one more vote: a class without votes is not impossible.
    trees = getattr(model, "n_estimators", None)
    if trees is not None:
        probs = (trees * probs + 1) / (trees + probs.shape[1])
    logits = torch.from_numpy(np.log(np.maximum(probs, 1e-12))).to(x.dtype)
    return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])


def _models(task: str, rows: int = 1, features: int = 1, seed: int = 0) -> dict[str, Any]:
    """The models by the names of the baselines."""
    from sklearn import dummy, ensemble, gaussian_process, linear_model
    from sklearn.gaussian_process import kernels

    leaf = 5 if rows > _MOST_IN_WHOLE_TREES else 1
    lengths = np.full(features if features <= _MOST_LENGTHS else 1, float(features) ** 0.5)
    smooth = kernels.ConstantKernel() * kernels.RBF(lengths)
    if task == "classification":
        return {
            "constant": dummy.DummyClassifier(strategy="prior"),
            "logistic regression": linear_model.LogisticRegression(max_iter=1000),
            "gradient boosting": ensemble.HistGradientBoostingClassifier(random_state=seed),
            "random forest": ensemble.RandomForestClassifier(
                min_samples_leaf=leaf, random_state=seed
            ),
            _PROCESS: gaussian_process.GaussianProcessClassifier(smooth, random_state=seed),
        }
    noisy = smooth + kernels.WhiteKernel()
    return {
        "constant": dummy.DummyRegressor(),
        "bayesian ridge": linear_model.BayesianRidge(),
        "gradient boosting": ensemble.HistGradientBoostingRegressor(random_state=seed),
        "random forest": ensemble.RandomForestRegressor(
            min_samples_leaf=leaf, oob_score=True, random_state=seed
        ),
        _PROCESS: gaussian_process.GaussianProcessRegressor(noisy, random_state=seed),
    }


def _noise(model: Any, x: Floats, y: Floats) -> float:
    """The noise's standard deviation: the model's own, or that of residuals on unseen rows."""
    from sklearn.model_selection import KFold, cross_val_predict

    if hasattr(model, "lambda_"):
        return float(model.alpha_**-0.5)
    if hasattr(model, "kernel_"):
        return float(np.sqrt(model.kernel_.k2.noise_level).item())
    if hasattr(model, "oob_prediction_"):
        unseen = model.oob_prediction_
    else:
        folds = KFold(min(5, len(y)), shuffle=True, random_state=0)
        unseen = cross_val_predict(model, x, y, cv=folds)
    return float(np.sqrt(np.nanmean((y - unseen) ** 2)))


def _mean_and_variance(model: Any, x: Floats, noise: float) -> tuple[Floats, Floats]:
    """The mean and the model's own variance without the noise, zero where it gives none."""
    if not (hasattr(model, "lambda_") or hasattr(model, "kernel_")):
        mean = model.predict(x)
        return mean, np.zeros_like(mean)
    mean, deviation = model.predict(x, return_std=True)
    return mean, np.maximum(deviation**2 - noise**2, 0.0)


def _array(x: Tensor) -> Floats:
    return x.detach().cpu().double().numpy()


@contextmanager
def _quietly_on_one_core() -> Iterator[None]:
    """One core, as for the methods, and no warnings of searches that did not converge."""
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield
