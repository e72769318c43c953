"""scikit-learn estimators: arrays in, predictions and their uncertainty out, in original units.

There is no `partial_fit`: `Learner.step` is for data that arrive in batches.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import LabelEncoder, StandardScaler
    from sklearn.utils import check_array, check_consistent_length, check_random_state
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as problem:
    raise ImportError(
        "bayesrule.sklearn needs scikit-learn 1.6 or later: pip install 'bayesrule[front]'."
    ) from problem

from bayesrule.app.own_recipe import Build, OwnRecipe
from bayesrule.app.recipe import Method
from bayesrule.likelihoods._weighted import weighted
from bayesrule.methods import METHODS, find
from bayesrule.predicting.predict import How
from bayesrule.predicting.prediction import Prediction
from bayesrule.schedules import Schedule

Floats = NDArray[np.float64]

# Larger numbers do not fit into float32; they are mistakes or stand for missing values.
_LARGEST = float(np.finfo(np.float32).max)
# A module's first weights and its dropout use torch's global random state, which is restored
# afterwards; so only one thread of a process may fit at a time.
_FITTING = threading.RLock()


# A dataclass writes the constructor that scikit-learn asks for: settings kept as they are given.
@dataclass(eq=False, repr=False)
class _Bayes(BaseEstimator):
    """What both estimators share: checks of arrays, training and predictions."""

    method: str | Method = "vogn"
    _: KW_ONLY
    hidden: int | Sequence[int] | None = None
    network: Build | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    prior_precision: float | None = None
    temperature: float | None = None
    learning_rate: float | Schedule | None = None
    patience: int | None = None
    members: int | None = None
    validation_fraction: float = 0.1
    standardise: bool = True
    options: Mapping[str, Any] | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    def predict_distribution(self, X: Any, how: How | None = None) -> Prediction:
        """The predictive distribution in original units, its tensors (n, D) or (n, classes).

        `how` is `Draws(num)`, `AtMean()`, `Linearised()`, `Moments()`, or None for the default.
        """
        check_is_fitted(self, "run_")
        x = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        self._refuse_unfit(x)
        prediction = self.run_.predict(self.scaler_.transform(x), how)
        scaler = self.target_scaler_
        return prediction if scaler is None else prediction.rescaled(scaler.mean_, scaler.scale_)

    def predict_uncertainty(self, X: Any) -> tuple[Floats, Floats]:
        """Two variances of y: epistemic (more data would remove it) and aleatoric (would not).

        For classes they are of the one-hot y, summed over classes: together `1 − Σ_c p_c²`, (n,).
        """
        prediction = self.predict_distribution(X)
        return self._array(prediction.epistemic), self._array(prediction.aleatoric)

    def log_likelihood(self, X: Any, y: ArrayLike) -> float:
        """The mean of `log p(y | x)` over examples, in original units; larger is better."""
        check_consistent_length(X, y)
        prediction = self.predict_distribution(X)
        targets = torch.as_tensor(self._targets(y)).to(prediction.mean.device)
        return float(prediction.log_prob(targets).mean())

    def _checked(self, X: Any, y: ArrayLike, **taken: bool) -> tuple[Floats, NDArray[Any]]:
        """The arrays for `fit`; raises for a number that is missing, infinite or too large."""
        # A fit that fails must not leave an old run with new scales.
        self.__dict__.pop("run_", None)
        least = {"ensure_all_finite": False, "ensure_min_samples": 2}
        x, targets = validate_data(self, X, y, dtype=np.float64, **least, **taken)
        self._refuse_unfit(x)
        return x, targets

    def _refuse_unfit(self, values: Floats, of: str = "X") -> None:
        """Raises a ValueError for the first number that is missing, infinite or too large."""
        unfit = np.argwhere(~(np.abs(values) <= _LARGEST))
        for row, column in unfit[:1]:
            names = getattr(self, "feature_names_in_", None) if of == "X" else None
            name = repr(names[column]) if names is not None else column
            value = values[row, column]
            what = "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else f"{value:g}"
            raise ValueError(
                f"{of} contains {what} in column {name}, row {row} ({len(unfit)} such numbers in "
                f"all). {type(self).__name__} takes numbers within ±{_LARGEST:.2g}: fill others in "
                "(sklearn.impute.SimpleImputer) or drop their rows."
            )

    def _weights(self, sample_weight: Any, x: Floats) -> Floats | None:
        """How often each row counts; None where all count once."""
        if sample_weight is None:
            return None
        weight: Floats = _check_sample_weight(sample_weight, x, dtype=np.float64)
        if not (weight >= 0).all() or not weight.any():
            raise ValueError("sample_weight has numbers from 0 up, not all of them 0.")
        return weight

    def _scaler(self, values: Floats, weight: Floats | None) -> StandardScaler:
        scaler = StandardScaler(with_mean=self.standardise, with_std=self.standardise)
        return scaler.fit(values, sample_weight=weight)

    def _learn(
        self, x: Floats, y: NDArray[Any], weight: Floats | None, targets: int, likelihood: str
    ) -> Self:
        """Trains on x (n, d) and y, (n, D) standardised or (n,) class numbers."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scaler_ = self._scaler(x, weight)
        inputs, outputs = torch.as_tensor(self.scaler_.transform(x)), torch.as_tensor(y)
        if weight is not None:
            outputs = weighted(outputs, weight)
        validation = None
        if self.patience is not None:
            share, rows = self.validation_fraction, np.arange(len(y))
            train, held_out = train_test_split(rows, test_size=share, random_state=seed)
            validation = inputs[held_out], outputs[held_out]
            inputs, outputs = inputs[train], outputs[train]
        more = {"validation": validation, "progress": bool(self.verbose)}
        with _FITTING:
            self.run_ = self._recipe(likelihood, seed).fit(inputs, outputs, targets, **more)
        return self

    def _recipe(self, likelihood: str, seed: int) -> OwnRecipe:
        method = self.method if callable(self.method) else find(self.method)
        name = getattr(method, "__name__", "")
        named = METHODS.get(name) is method
        general = ("prior_precision", "temperature", "learning_rate")
        options = {name: getattr(self, name) for name in general} | dict(self.options or {})
        length = ("epochs", "steps", "batch_size", "patience", "members")
        return OwnRecipe(
            # The caller's own method trains for as long as the default one.
            method=name if named else "vogn",
            function=None if named else method,
            build=self.network,
            likelihood=likelihood,
            hidden=_layers(() if self.network is not None else self.hidden),
            seed=seed,
            options={name: value for name, value in options.items() if value is not None},
            **{name: _plain(getattr(self, name)) for name in length},
        )


@dataclass(eq=False, repr=False, kw_only=True)
class BayesRegressor(RegressorMixin, _Bayes):
    """Regression by a Bayesian neural network: predictions that say how sure they are.

    - `method`: a name (`bayesrule.methods.METHODS`; hyphens or underscores) or a function of the
      same form.
    - `likelihood`: "gaussian" (the default; its noise is learned), "heteroscedastic" (noise that
      depends on the inputs) or "poisson" (counts, which are not standardised).
    - `hidden`: sizes of the hidden layers, chosen by held-out rows where None; linear methods have
      none.
    - `network`: `(inputs, outputs) -> nn.Module`, a module of your own in place of `hidden`. It
      keeps its own dtype; the built-in one has float64.
    - `epochs`, `batch_size`: how long to train; without `epochs`, for about `steps` batches, and
      without either for as long as held-out rows choose.
    - `temperature`: below 1 the data count more; None lets held-out rows choose, for methods that
      gain by it.
    - `prior_precision`, `learning_rate`: the method's own where None; `options`: further ones, such
      as `{"draws": 4}`. Rates of named methods fall along a cosine unless they are schedules.
    - `patience`: stop after so many epochs without a better log-likelihood of held-out rows, a
      `validation_fraction` of all; None trains to the end on all rows.
    - `members`: nets with different first weights, averaged in predictions; None: five for most
      methods, one where the length of training is given.
    - `standardise`: whether inputs and real-valued targets are standardised inside.
    - `random_state`: an int for the same result each time; `verbose`: show a progress bar.

    Attributes after `fit`: `run_` (learner, state, history), `scaler_`, `target_scaler_`,
    `n_features_in_` and, for data frames, `feature_names_in_`.

    >>> X = np.linspace(-1.0, 1.0, 20).reshape(-1, 1)
    >>> model = BayesRegressor("ridge", random_state=0).fit(X, 100.0 + 30.0 * X[:, 0])
    >>> mean, std = model.predict([[0.5], [10.0]], return_std=True)
    >>> bool(abs(mean[0] - 115.0) < 2.0), bool(std[1] > 2.0 * std[0])
    (True, True)
    """

    likelihood: Literal["gaussian", "heteroscedastic", "poisson"] = "gaussian"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Trains on X (n, d) and y, (n,) or (n, D); a row counts as often as its weight says."""
        if self.likelihood not in ("gaussian", "heteroscedastic", "poisson"):
            raise ValueError(
                "BayesRegressor takes the likelihoods gaussian, heteroscedastic and poisson, got "
                f"{self.likelihood!r}. For classes use BayesClassifier."
            )
        x, checked = self._checked(X, y, multi_output=True, y_numeric=True)
        self._shape = checked.shape[1:]
        targets = np.asarray(checked, dtype=np.float64).reshape(len(checked), -1)
        self._refuse_unfit(targets, "y")
        weight = self._weights(sample_weight, x)
        scales = self.standardise and self.likelihood != "poisson"
        self.target_scaler_ = self._scaler(targets, weight) if scales else None
        if self.target_scaler_ is not None:
            targets = self.target_scaler_.transform(targets)
        return self._learn(x, targets, weight, targets.shape[1], self.likelihood)

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> Floats: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[Floats, Floats]: ...

    def predict(self, X: Any, return_std: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean, shaped as y was; with `return_std` also the standard deviation of y."""
        prediction = self.predict_distribution(X)
        mean = self._array(prediction.mean)
        return (mean, self._array(prediction.std)) if return_std else mean

    def predict_quantiles(self, X: Any, q: float | Sequence[float]) -> Floats:
        """The quantile q of y for each input; several quantiles are stacked along a first axis."""
        prediction = self.predict_distribution(X)
        quantiles = [self._array(prediction.quantile(float(level))) for level in np.atleast_1d(q)]
        return np.stack(quantiles) if np.ndim(q) else quantiles[0]

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Floats, Floats]:
        """The lower and upper end of the central interval that holds y with probability `level`."""
        low, high = self.predict_distribution(X).interval(level)
        return self._array(low), self._array(high)

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")

    def _array(self, values: Tensor) -> Floats:
        return _numbers(values).reshape(len(values), *self._shape)


@dataclass(eq=False, repr=False, kw_only=True)
class BayesClassifier(ClassifierMixin, _Bayes):
    """Classification by a Bayesian neural network: probabilities that say how sure they are.

    Settings are those of `BayesRegressor` without `likelihood`; a `network` of your own has one
    output, a logit, for each class. `class_weight` says how often rows of a label count, as a dict;
    "balanced" gives all labels the same total weight. Attributes after `fit`: `classes_`, the
    labels in the order of the columns of `predict_proba`, and `run_`, `scaler_`, `n_features_in_`,
    `feature_names_in_`.

    >>> X = np.array([[-2.0], [-1.5], [-1.0], [1.0], [1.5], [2.0]])
    >>> model = BayesClassifier("laplace", epochs=100, random_state=0)
    >>> model = model.fit(X, ["low", "low", "low", "high", "high", "high"])
    >>> print(model.predict([[-1.8], [1.8]]), model.predict_proba([[0.0]]).shape)
    ['low' 'high'] (1, 2)
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Trains on X (n, d) and labels y (n,) of any kind; a row counts as often as it weighs."""
        x, labels = self._checked(X, y)
        check_classification_targets(labels)
        self.encoder_, self.target_scaler_ = LabelEncoder(), None
        codes = self.encoder_.fit_transform(labels)
        self.classes_ = self.encoder_.classes_
        if len(self.classes_) < 2:
            raise ValueError(
                f"BayesClassifier needs two or more classes, got one class only: {self.classes_}."
            )
        weight = self._weights(sample_weight, x)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, labels)
            weight = by_class if weight is None else weight * by_class
        return self._learn(x, codes, weight, len(self.classes_), "categorical")

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each input."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class (n, C), averaged over the posterior."""
        return _numbers(self.predict_distribution(X).probs)

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithm of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        return self.encoder_.transform(y)

    def _array(self, values: Tensor) -> Floats:
        return _numbers(values.sum(-1))


def _layers(hidden: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if hidden is None else tuple(_plain(size) for size in np.atleast_1d(hidden))


def _plain(number: Any) -> Any:
    """A plain int for one of numpy's, which a search over settings may give."""
    return operator.index(number) if hasattr(number, "__index__") else number


def _numbers(values: Tensor) -> Floats:
    return values.detach().cpu().double().numpy()
