"""What a user would take instead: models of scikit-learn, judged as the methods are."""

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
_MOST_ROWS = 1_000  # a Gaussian process takes time in the cube of the rows, for each class
_MOST_LABELS = 2_000
_MOST_LENGTHS = 20  # features that can each have a length scale in reasonable time
# In units of the target's spread: a model that repeats its rows exactly is still not certain.
_LEAST_NOISE = 1e-4


def names(task: str) -> list[str]:
    """The baselines for a task, the simplest first."""
    return list(_models(task, features=1, seed=0))


def obstacles(task: str, rows: int, outputs: int) -> dict[str, str]:
    """Baselines that so many training rows and classes do not allow, and why in words."""
    if rows <= _MOST_ROWS and rows * outputs <= _MOST_LABELS:
        return {}
    most = f"at most {_MOST_ROWS:,} training rows"
    if task == "classification":
        most += f" and {_MOST_LABELS:,} rows times classes"
    return {_PROCESS: f"it takes {most}, and here are {rows:,}"}


@dataclass(frozen=True)
class Baseline:
    """One model of scikit-learn by its name, in the place of a recipe."""

    method: str
    task: str
    seed: int = 0
    epochs: ClassVar[int] = 1

    def for_data(self, num_data: int) -> Baseline:
        """The same, ready: what takes time to load is not to count as training."""
        _models(self.task, features=1, seed=0)
        return self

    def chosen(self, x: Tensor, y: Tensor, targets: int) -> Baseline:
        """The same: models of scikit-learn are taken as they are."""
        return self

    def fit(self, x: Tensor, y: Tensor, targets: int, **_: Any) -> FittedBaseline:
        """Trains on what a recipe trains on: standardised x (n, d), y (n, 1) or classes (n,)."""
        rows, wanted = _array(x), y.reshape(-1).numpy()
        model = _models(self.task, x.shape[1], self.seed)[self.method]
        with _quietly_on_one_core():
            model.fit(rows, wanted)
            if self.task == "classification":
                return FittedBaseline(model)
            return FittedBaseline(model, max(_noise(model, rows, wanted), _LEAST_NOISE))


@dataclass(frozen=True)
class FittedBaseline:
    """A trained model of scikit-learn; `noise` is that of real-valued targets, None for classes."""

    model: Any
    noise: float | None = None

    def parts(self) -> dict[str, str]:
        """What it is, in the place of a method's parts."""
        return {"model": f"scikit-learn's {type(self.model).__name__}"}

    def predict(self, x: Tensor) -> Prediction:
        """What it says of new inputs."""
        with _quietly_on_one_core():
            if self.noise is None:
                return _classes(self.model, x)
            return _numbers(self.model, x, self.noise)


def _numbers(model: Any, x: Tensor, noise: float) -> Prediction:
    """Gaussian predictions: what the model knows of its own error, and the noise beside it."""
    mean, epistemic = _mean_and_variance(model, _array(x), noise)
    column = torch.from_numpy(np.stack([mean, epistemic])).to(x.dtype).unsqueeze(-1)
    marginal = GaussianLikelihood(noise=noise).marginal(column[0], column[1], {})
    return Prediction.closed_form(marginal)


def _classes(model: Any, x: Tensor) -> Prediction:
    """The classifier's own probabilities."""
    probs = model.predict_proba(_array(x))
    # A forest counts one vote more for each class: without a vote a class is not impossible.
    trees = getattr(model, "n_estimators", None)
    if trees is not None:
        probs = (trees * probs + 1) / (trees + probs.shape[1])
    logits = torch.from_numpy(np.log(np.maximum(probs, 1e-12))).to(x.dtype)
    return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])


def _models(task: str, features: int, seed: int) -> dict[str, Any]:
    """The models by the names of the baselines."""
    from sklearn import dummy, ensemble, gaussian_process, linear_model
    from sklearn.gaussian_process import kernels

    lengths = np.full(features if features <= _MOST_LENGTHS else 1, float(features) ** 0.5)
    smooth = kernels.ConstantKernel() * kernels.RBF(lengths)
    if task == "classification":
        return {
            "constant": dummy.DummyClassifier(strategy="prior"),
            "logistic regression": linear_model.LogisticRegression(max_iter=1000),
            "gradient boosting": ensemble.HistGradientBoostingClassifier(random_state=seed),
            "random forest": ensemble.RandomForestClassifier(random_state=seed),
            _PROCESS: gaussian_process.GaussianProcessClassifier(smooth, random_state=seed),
        }
    noisy = smooth + kernels.WhiteKernel()
    return {
        "constant": dummy.DummyRegressor(),
        "bayesian ridge": linear_model.BayesianRidge(),
        "gradient boosting": ensemble.HistGradientBoostingRegressor(random_state=seed),
        "random forest": ensemble.RandomForestRegressor(oob_score=True, random_state=seed),
        _PROCESS: gaussian_process.GaussianProcessRegressor(noisy, random_state=seed),
    }


def _noise(model: Any, x: Floats, y: Floats) -> float:
    """The deviation of the noise: the model's own, or that of residuals on rows it did not see."""
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
    """The mean, and the variance of the model itself, without the noise; zero if it has none."""
    if not (hasattr(model, "lambda_") or hasattr(model, "kernel_")):
        mean = model.predict(x)
        return mean, np.zeros_like(mean)
    mean, deviation = model.predict(x, return_std=True)
    return mean, np.maximum(deviation**2 - noise**2, 0.0)


def _array(x: Tensor) -> Floats:
    return x.detach().cpu().double().numpy()


@contextmanager
def _quietly_on_one_core() -> Iterator[None]:
    """As the methods train; that a search has not converged is not said of a baseline."""
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield
