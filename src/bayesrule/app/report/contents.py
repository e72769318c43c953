"""The data of a comparison: plain frozen records that the report draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.predicting import metrics
from bayesrule.predicting.evaluate import ECE_BINS, coverage_levels
from bayesrule.predicting.prediction import Prediction

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Task: TypeAlias = Literal["regression", "classification"]


def _columns(owner: object, names: Sequence[str]) -> None:
    """Turn the named fields into float vectors of one length, in place."""
    for name in names:
        values = np.asarray(getattr(owner, name), dtype=np.float64).reshape(-1)
        object.__setattr__(owner, name, values)
    lengths = {name: len(getattr(owner, name)) for name in names}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{type(owner).__name__} takes columns of one length, got {lengths}; "
            "pass the same rows to every column."
        )


@dataclass(frozen=True, eq=False)
class Statistic:
    """The mean of a metric over the splits, its standard error and the value of each split."""

    mean: float
    sem: float = float("nan")
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        """Mean and standard error, s / √n with n − 1 in s; the error is NaN for one value.

        >>> s = Statistic.of([1.0, 2.0, 3.0])
        >>> s.mean, round(s.sem, 3)
        (2.0, 0.577)
        """
        kept = tuple(float(v) for v in values)
        if not kept:
            return cls(float("nan"))
        # Infinite values give NaN on the way; that is a valid answer, not worth a warning.
        with np.errstate(invalid="ignore"):
            sem = float(np.std(kept, ddof=1) / np.sqrt(len(kept))) if len(kept) > 1 else np.nan
        return cls(float(np.mean(kept)), float(sem), kept)


@dataclass(frozen=True, eq=False)
class Curve:
    """Learning on one split: training loss and validation score by epoch (both may be empty)."""

    epochs: Floats
    train_loss: Floats
    validation: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        for name in ("train_loss", "validation"):
            if len(getattr(self, name)):
                _columns(self, ("epochs", name))
            else:
                object.__setattr__(self, name, np.empty(0))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Promised against observed frequencies, both in [0, 1], and the number of test rows of each.

    For numbers, the level of an interval and the share of true values inside; for classes, the
    mean confidence and the accuracy of a confidence bin.
    """

    promised: Floats
    observed: Floats
    rows: Floats

    def __post_init__(self) -> None:
        _columns(self, ("promised", "observed", "rows"))


@dataclass(frozen=True, eq=False)
class RegressionPredictions:
    """Predictions for the test rows of the first split; every column has shape (n,).

    `lower` and `upper` bound the central 90 % interval.
    """

    y: Floats
    mean: Floats
    epistemic_std: Floats
    aleatoric_std: Floats
    lower: Floats
    upper: Floats
    calibration: Calibration

    def __post_init__(self) -> None:
        _columns(self, ("y", "mean", "epistemic_std", "aleatoric_std", "lower", "upper"))


@dataclass(frozen=True, eq=False)
class ClassificationPredictions:
    """Predictions for the test rows of the first split; `y` holds class indices, shape (n,).

    `probabilities` has shape (n, C); `epistemic` and `aleatoric` have shape (n,).
    """

    y: Integers
    probabilities: Floats
    classes: tuple[str, ...]
    epistemic: Floats
    aleatoric: Floats
    calibration: Calibration

    def __post_init__(self) -> None:
        _columns(self, ("y", "epistemic", "aleatoric"))
        object.__setattr__(self, "y", self.y.astype(np.int64))
        object.__setattr__(self, "classes", tuple(str(c) for c in self.classes))
        probabilities = np.asarray(self.probabilities, dtype=np.float64)
        object.__setattr__(self, "probabilities", probabilities)
        wanted = (len(self.y), len(self.classes))
        if probabilities.shape != wanted:
            raise ValueError(
                f"probabilities have shape {probabilities.shape}, but {wanted[0]} rows of y and "
                f"{wanted[1]} class names need {wanted}; give one column per class."
            )
        if len(self.y) and not (self.y.min() >= 0 and self.y.max() < wanted[1]):
            raise ValueError(
                f"y holds class indices from {self.y.min()} to {self.y.max()}, but there are "
                f"{wanted[1]} class names; give indices from 0 to {wanted[1] - 1}."
            )


Predictions: TypeAlias = RegressionPredictions | ClassificationPredictions


def predictions_of(prediction: Prediction, y: Tensor, classes: Sequence[object]) -> Predictions:
    """What the report shows of a prediction for test rows with targets (n, 1) or classes (n,)."""
    if prediction.classification:
        bins = metrics.reliability(prediction.probs, y, bins=ECE_BINS)
        calibration = [part.numpy() for part in (bins.confidence, bins.accuracy, bins.count)]
        return ClassificationPredictions(
            y=y.numpy(),
            probabilities=prediction.probs.numpy(),
            classes=tuple(str(label) for label in classes),
            epistemic=prediction.epistemic.sum(-1).numpy(),
            aleatoric=prediction.aleatoric.sum(-1).numpy(),
            calibration=Calibration(*calibration),
        )
    levels = coverage_levels()
    observed = metrics.coverage_curve(prediction.cdf(y).reshape(-1), levels)
    lower, upper = prediction.interval(0.9)
    return RegressionPredictions(
        y=y.numpy(),
        mean=prediction.mean.numpy(),
        epistemic_std=prediction.epistemic.sqrt().numpy(),
        aleatoric_std=prediction.aleatoric.sqrt().numpy(),
        lower=lower.numpy(),
        upper=upper.numpy(),
        calibration=Calibration(levels.numpy(), observed.numpy(), np.full(len(levels), len(y))),
    )


@dataclass(frozen=True, eq=False)
class MethodResult:
    """One method: its parts, scores, curves and predictions, or the error that ended it.

    A `baseline` is not a method of this library but a model that a user would take instead.
    """

    name: str
    parts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Statistic] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    predictions: Predictions | None = None
    error: str | None = None
    baseline: bool = False

    def statistic(self, key: str) -> Statistic:
        """One metric; NaN where there is none."""
        return self.metrics.get(key, Statistic(float("nan")))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything the report shows; `summary` is the sentence that says why the task was chosen."""

    title: str
    dataset: str
    task: Task
    rows: int
    features: int
    summary: str
    splits: int
    seed: int
    command: str
    versions: Mapping[str, str]
    machine: str
    seconds: float
    notes: Sequence[str]
    methods: Sequence[MethodResult]
    validation_label: str = "validation score"

    def __post_init__(self) -> None:
        kinds = {"regression": RegressionPredictions, "classification": ClassificationPredictions}
        if self.task not in kinds:
            raise ValueError(f"task is {self.task!r}; it takes {' or '.join(map(repr, kinds))}.")
        for method in self.methods:
            got = method.predictions
            if got is not None and not isinstance(got, kinds[self.task]):
                raise ValueError(
                    f"method {method.name!r} has {type(got).__name__}, but the task is "
                    f"{self.task}; give {kinds[self.task].__name__}."
                )
