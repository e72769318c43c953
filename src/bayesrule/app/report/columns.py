"""The table of metrics: label, direction, format and explanation, and how values are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .contents import Comparison, MethodResult

MISSING = "–"


@dataclass(frozen=True)
class Metric:
    """One column of the leaderboard.

    `direction` says which values are better: lower, higher, near the `target`, or unknown.
    `format` is "percent", or "auto" for decimals that suit the size of the column.
    """

    key: str
    label: str
    direction: Literal["lower", "higher", "target", "unknown"]
    explanation: str
    format: Literal["auto", "percent"] = "auto"
    target: float = float("nan")

    def sort_key(self, value: float) -> float:
        """The number the column sorts by: the value, or its distance from the target."""
        return abs(value - self.target) if self.direction == "target" else value

    def badness(self, value: float) -> float:
        """The value transformed so that smaller is better."""
        return -value if self.direction == "higher" else self.sort_key(value)

    @property
    def hint(self) -> str:
        """The direction in words, e.g. "lower is better"."""
        if self.direction == "target":
            return f"near {show(self.target, self, 0)} is best"
        return "" if self.direction == "unknown" else f"{self.direction} is better"


_TABLE = (
    Metric("log_likelihood", "Log-likelihood", "higher",
           "Mean log density that the method gave to the true values: it rewards predictions that "
           "are accurate and honest about their uncertainty."),
    Metric("nll", "NLL", "lower",
           "Mean negative log probability of the true class: confident mistakes cost most."),
    Metric("rmse", "RMSE", "lower",
           "Root mean squared error of the predicted mean, in units of the target."),
    Metric("mae", "MAE", "lower",
           "Mean absolute error, in units of the target: large mistakes weigh less than in RMSE."),
    Metric("crps", "CRPS", "lower",
           "Continuous ranked probability score, in units of the target: the absolute error, "
           "generalised to whole predictive distributions."),
    Metric("coverage_90", "90 % coverage", "target",
           "Share of test rows whose true value lies in the 90 % interval: below 90 % the method "
           "is overconfident, above it too cautious.", "percent", 0.9),
    Metric("sharpness_90", "90 % width", "lower",
           "Mean width of the 90 % interval, in units of the target: a narrow interval is good "
           "only where its coverage is right."),
    Metric("accuracy", "Accuracy", "higher",
           "Share of test rows whose most probable class is the true one.", "percent"),
    Metric("balanced_accuracy", "Balanced accuracy", "higher",
           "Accuracy on the test rows of each class, the mean over the classes: guessing one class "
           "for all rows gives 1 / number of classes.", "percent"),
    Metric("brier", "Brier", "lower",
           "Mean squared distance between the predicted probabilities and the truth (one for the "
           "true class, zero for the others)."),
    Metric("ece", "ECE", "lower",
           "Expected calibration error: the mean gap between confidence and accuracy over the "
           "bins of confidence."),
    Metric("auroc", "AUROC", "higher",
           "Area under the ROC curve, the mean over the classes: 0.5 is guessing, 1 ranks every "
           "row of the class above all others."),
    Metric("average_precision", "Avg. precision", "higher",
           "Area under the precision-recall curve, the mean over the classes: rows of rare classes "
           "must be found without too many false alarms."),
    Metric("seconds", "Training seconds", "lower",
           "Time to train on one split, on one core; predicting is not counted."),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.key: metric for metric in _TABLE}


def label(key: str) -> str:
    """The name of a metric in a table, or its key where the metric is not a known one."""
    return METRICS[key].label if key in METRICS else key


def show(value: float, metric: Metric, digits: int) -> str:
    """The value as people read it, with a true minus sign; "–" where there is none.

    >>> show(-2.4567, METRICS["log_likelihood"], 2), show(0.9, METRICS["accuracy"], 1)
    ('−2.46', '90.0 %')
    >>> show(0.0042, METRICS["seconds"], 1)
    '0.0042'
    """
    if not math.isfinite(value):
        return MISSING
    if metric.format == "percent":
        text = f"{100 * value:.{digits}f} %"
    elif abs(value) >= 1e6:
        text = f"{value:.1e}"
    elif 0 < abs(value) < 0.5 * 10.0**-digits:
        text = f"{value:.2g}"
    else:
        text = f"{value:.{digits}f}"
    return text.replace("-", "−")


def show_error(sem: float, metric: Metric, digits: int) -> str:
    """A standard error with the decimals of its mean.

    >>> show_error(0.0049, METRICS["rmse"], 2), show_error(0.012, METRICS["accuracy"], 1)
    ('0.00', '1.2')
    """
    size = 100 * sem if metric.format == "percent" else sem
    return f"{size:.1e}" if size >= 1e6 else f"{size:.{digits}f}"


def columns(comparison: Comparison) -> list[Metric]:
    """The metrics that any method has, known ones first, unknown ones plainly, seconds last."""
    present = dict.fromkeys(key for m in comparison.methods for key in m.metrics)
    known = [metric for metric in _TABLE if metric.key in present and metric.key != "seconds"]
    unknown = [Metric(key, key, "unknown", "") for key in present if key not in METRICS]
    last = [METRICS["seconds"]] if "seconds" in present or not present else []
    return [*known, *unknown, *last]


def digits_of(metric: Metric, methods: Sequence[MethodResult]) -> int:
    """Decimals for one column: enough to give its typical value three digits."""
    if metric.format == "percent":
        return 1
    means = [abs(m.statistic(metric.key).mean) for m in methods]
    sizes = [size for size in means if math.isfinite(size) and size != 0]
    return int(np.clip(2 - math.floor(math.log10(np.median(sizes))), 0, 6)) if sizes else 2


def primary(comparison: Comparison) -> Metric:
    """The metric the leaderboard is ordered by: the likelihood where there is one."""
    present = columns(comparison)
    likelihoods = [m for m in present if m.key in ("log_likelihood", "nll")]
    return (likelihoods or present)[0]


def order(comparison: Comparison, metric: Metric) -> list[int]:
    """Indices of the methods from best to worst, then those without a value, then failed ones."""

    def key(index: int) -> tuple[bool, bool, float]:
        method = comparison.methods[index]
        worse = metric.badness(method.statistic(metric.key).mean)
        absent = not math.isfinite(worse)
        return method.error is not None, absent, 0.0 if absent else worse

    return sorted(range(len(comparison.methods)), key=key)
