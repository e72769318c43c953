"""Comparisons with invented but plausible content, of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bayesrule.app.report.contents import (
    Calibration,
    ClassificationPredictions,
    Comparison,
    Curve,
    MethodResult,
    RegressionPredictions,
    Statistic,
)

NAMES = ("noisy_kfac", "vogn", "ivon", "mean_field", "tagi", "laplace", "k_tied", "map", "dropout")
PARTS = {
    "posterior": "Kronecker",
    "expectation": "draws",
    "curvature": "sampled Fisher",
    "rule": "natural gradient",
}


def regression(rng: np.random.Generator, rows: int, blur: float) -> RegressionPredictions:
    """Predictions whose claimed noise is `blur` times the true one."""
    x = rng.uniform(-2, 2, rows)
    y = 20 + 8 * np.sin(1.5 * x) + rng.normal(0, 1 + 0.6 * np.abs(x), rows)
    aleatoric = blur * (1 + 0.6 * np.abs(x))
    epistemic = blur * 0.5 * (0.3 + np.abs(x) ** 2 / 3)
    mean = 20 + 8 * np.sin(1.5 * x) + rng.normal(0, 0.4, rows)
    total = np.sqrt(aleatoric**2 + epistemic**2)
    levels = np.linspace(0.05, 0.95, 19)
    observed = np.clip(levels ** (1 / blur), 0, 1)
    return RegressionPredictions(
        y, mean, epistemic, aleatoric, mean - 1.645 * total, mean + 1.645 * total,
        Calibration(levels, observed, np.full(len(levels), rows)),
    )  # fmt: skip


def classification(
    rng: np.random.Generator, rows: int, classes: int, blur: float
) -> ClassificationPredictions:
    """Predictions from noisy logits, sharpened by 1 / `blur`."""
    y = rng.integers(0, classes, rows)
    logits = rng.normal(0, 1, (rows, classes))
    logits[np.arange(rows), y] += rng.exponential(3.5, rows)
    logits = logits / blur
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    top, right = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.minimum((top * 10).astype(int), 9)
    count = np.bincount(bins, minlength=10)
    safe = np.maximum(count, 1)
    confidence = np.bincount(bins, top, 10) / safe
    accuracy = np.bincount(bins, right, 10) / safe
    aleatoric = -(p * np.log(p + 1e-12)).sum(axis=1)
    return ClassificationPredictions(
        y, p, tuple(f"class {c}" for c in range(classes)),
        aleatoric * rng.uniform(0.05, 0.4, rows), aleatoric,
        Calibration(confidence, accuracy, count),
    )  # fmt: skip


def method(
    index: int, *, task: str, rows: int, classes: int, splits: int, epochs: int
) -> MethodResult:
    """One invented method; its quality depends on its index."""
    rng = np.random.default_rng(index)
    blur = (1.0, 0.8, 1.2, 1.6, 0.6, 1.1, 0.9, 0.4, 1.4)[index % 9]
    name = NAMES[index] if index < len(NAMES) else f"{NAMES[index % 9]}_{index}"
    centres = {
        "regression": {"log_likelihood": -2.3 - 0.1 * index, "rmse": 2.4 + 0.07 * (index % 5),
                       "mae": 1.8 + 0.05 * (index % 4), "crps": 1.3 + 0.04 * (index % 6),
                       "coverage_90": 0.9**(1 / blur), "sharpness_90": 6.2 * blur},
        "classification": {"nll": 0.31 + 0.03 * index, "accuracy": 0.93 - 0.004 * (index % 5),
                           "brier": 0.11 + 0.01 * (index % 4), "ece": 0.015 + 0.01 * (index % 6),
                           "auroc": 0.985 - 0.004 * (index % 3)},
    }[task]  # fmt: skip
    metrics = {k: Statistic.of(v * (1 + rng.normal(0, 0.02, splits))) for k, v in centres.items()}
    t = np.arange(1, epochs + 1)
    speed = 8 + 3 * index
    curves = [
        Curve(t, 4 * np.exp(-t / speed) + 1.1 + rng.normal(0, 0.03, epochs),
              -3.2 * np.exp(-t / speed) - 2.3 - 0.1 * index + rng.normal(0, 0.02, epochs))
        for _ in range(splits)
    ]  # fmt: skip
    if task == "regression":
        predictions = regression(np.random.default_rng(0), rows, blur)
    else:
        predictions = classification(np.random.default_rng(0), rows, classes, blur)
    metrics["seconds"] = Statistic.of([2.0 * 1.6**index % 97] * splits)
    return MethodResult(name, PARTS, metrics, curves, predictions)


def build(
    task: str = "regression",
    methods: int = 5,
    *,
    rows: int = 103,
    classes: int = 4,
    splits: int = 5,
    epochs: int = 60,
    failed: str | None = "Traceback (most recent call last):\n  ...\nValueError: not positive",
) -> Comparison:
    """A comparison of `methods` methods and, unless `failed` is None, one that failed."""
    made = [
        method(i, task=task, rows=rows, classes=classes, splits=splits, epochs=epochs)
        for i in range(methods)
    ]
    if failed is not None:
        made.append(MethodResult("newton", {"posterior": "full", "rule": "natural"}, error=failed))
    return Comparison(
        title="Concrete strength" if task == "regression" else "Handwritten digits",
        dataset="concrete.csv",
        task=task,  # type: ignore[arg-type]
        rows=1030,
        features=8,
        summary="The target “strength” is a number with 845 different values, so this is a "
        f"{task} task.",
        splits=splits,
        seed=0,
        command="bayesrule compare concrete.csv --target strength --splits 5",
        versions={"bayesrule": "0.1.0", "torch": "2.13.0", "python": "3.13.1"},
        machine="16 cores, Linux, no accelerator",
        seconds=431.0,
        notes=["2 rows without a target were left out.", "Columns were standardised."],
        methods=made,
        validation_label="validation log-likelihood",
    )


@pytest.fixture
def make_comparison() -> Callable[..., Comparison]:
    """The builder above, for tests that choose the size."""
    return build
