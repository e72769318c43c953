"""Every method side by side on the same splits of one table."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from bayesrule.app.data import DataError, Encoder, Table, split_rows
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import (
    CalibrationBins,
    ClassificationPredictions,
    Comparison,
    CoverageCurve,
    Curve,
    MethodResult,
    Predictions,
    RegressionPredictions,
    Statistic,
)
from bayesrule.app.report.contents import Floats
from bayesrule.learner import Learner
from bayesrule.methods import METHODS, Need, find, option_names, record
from bayesrule.predicting import metrics
from bayesrule.predicting.evaluate import ECE_BINS, coverage_levels, scores
from bayesrule.predicting.predict import predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.train import Epoch, predictive_on_the_way
from bayesrule.types import State

# Points of a learning curve: enough to see, few enough not to cost.
_CURVE_POINTS = 25


@dataclass(frozen=True)
class Trial:
    """One method on one split, as it is handed to a worker."""

    table: Table
    encoder_options: dict[str, Any]
    method: str
    recipe: Recipe
    train: torch.Tensor
    test: torch.Tensor
    keep_predictions: bool


@dataclass(frozen=True)
class Outcome:
    """What a trial found; `error` where it failed."""

    method: str
    parts: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = math.nan
    curve: Curve | None = None
    predictions: Predictions | None = None
    error: str | None = None


def compare(
    table: Table,
    target: str | None = None,
    *,
    methods: Sequence[str] | None = None,
    splits: int = 3,
    test_fraction: float = 0.2,
    recipe: Recipe | None = None,
    encoder_options: dict[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    command: str = "bayesrule.app.compare.compare(...)",
    progress: Callable[[int, int, Outcome], None] | None = None,
) -> Comparison:
    """Trains each method on the same random splits and gathers the scores on the test rows.

    Independent runs go to joblib: `jobs` processes here, or, with `jobs=None`, whatever backend is
    set around the call (`joblib.parallel_config("dask")` for a Dask cluster).
    """
    begun = time.perf_counter()
    options = encoder_options or {}
    encoder = Encoder.fit(table, target, **options)
    names = applicable(methods, encoder.task.kind)
    base = recipe or Recipe()
    trials = _trials(table, encoder, options, names, splits, test_fraction, base, seed)
    outcomes = _run(trials, jobs, progress)
    return Comparison(
        title=f"{table.name}: {len(names)} methods side by side",
        dataset=table.name,
        task=encoder.task.kind,
        rows=len(table),
        features=len(encoder.feature_names),
        summary=encoder.task.reason,
        splits=splits,
        seed=seed,
        command=command,
        versions=versions(),
        machine=machine(),
        seconds=time.perf_counter() - begun,
        notes=(
            *table.notes,
            *encoder.notes,
            *_notes(splits, test_fraction, encoder.task.kind),
            *_left_out(names, base.options),
        ),
        methods=[_gather(name, outcomes) for name in names],
        validation_label="test log-likelihood (only shown, never used to choose)",
    )


def applicable(methods: Sequence[str] | None, task: str) -> list[str]:
    """The methods by name, all that fit the task where none are named."""
    unfit = [name for name in METHODS if Need.REAL_TARGETS in record(name).needs]
    unfit = unfit if task == "classification" else []
    if methods is None:
        return [name for name in METHODS if name not in unfit]
    chosen = [find(name).__name__ for name in methods]
    for name in chosen:
        if name in unfit:
            raise ValueError(f"{name} is for regression; {record(name).limits}.")
    return list(dict.fromkeys(chosen))


def run_trial(trial: Trial) -> Outcome:
    """Trains and scores one method on one split, on one core; a failure is an outcome too."""
    with _one_core():
        try:
            return _train_and_score(trial)
        except Exception as problem:
            return Outcome(trial.method, error=f"{type(problem).__name__}: {problem}")


class _OneCore:
    """torch on one core while anybody is inside; trials may run in threads of one process."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before = torch.get_num_threads()
                torch.set_num_threads(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    torch.set_num_threads(self._before)


_one_core = _OneCore()


def _trials(
    table: Table,
    encoder: Encoder,
    options: dict[str, Any],
    names: Iterable[str],
    splits: int,
    test_fraction: float,
    base: Recipe,
    seed: int,
) -> list[Trial]:
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}.")
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction lies strictly between 0 and 1, got {test_fraction}.")
    classes = encoder.task.classification
    labels = encoder.targets(table) if classes else None
    fractions = (1.0 - test_fraction, test_fraction)
    fixed = {**options, "target": encoder.target, "task": encoder.task.kind}
    trials = []
    for number in range(splits):
        train, test = split_rows(len(table), fractions, seed=seed + number, stratify=labels)
        if len(train) < 2:
            raise DataError(
                f"'{table.name}' has {len(table)} rows, and test_fraction {test_fraction:g} leaves "
                f"{len(train)} of them to learn from; at least 2 are needed."
            )
        # What is wrong with the rows of a split is said before any training, not by each method.
        Encoder.fit(table.rows(train), **fixed)
        for name in names:
            likelihood = "categorical" if classes else "gaussian"
            own = {k: v for k, v in base.options.items() if k in option_names(find(name))}
            chosen = replace(
                base, method=name, likelihood=likelihood, seed=seed + number, options=own
            )
            trials.append(Trial(table, fixed, name, chosen, train, test, number == 0))
    return trials


def _run(
    trials: list[Trial], jobs: int | None, progress: Callable[[int, int, Outcome], None] | None
) -> list[Outcome]:
    import joblib

    pool = joblib.Parallel(n_jobs=jobs, return_as="generator")
    outcomes = []
    for outcome in pool(joblib.delayed(run_trial)(trial) for trial in trials):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(trials), outcome)
    return outcomes


def _train_and_score(trial: Trial) -> Outcome:
    rows = trial.table.rows(trial.train)
    fitted = Encoder.fit(rows, **trial.encoder_options)
    # A level that only the test rows have is no fault of the data: it is encoded as none.
    encoder = replace(fitted, unseen="ignore")
    test = trial.table.rows(trial.test)
    x, y = encoder.transform(rows), encoder.targets(rows)
    x_test, y_test = encoder.transform(test), encoder.targets(test)
    outputs = len(encoder.classes) if encoder.task.classification else 1
    recorder = _CurveRecorder(trial.recipe, x_test, y_test, len(y))
    begun = time.perf_counter()
    run = trial.recipe.fit(x, y, outputs, progress=False, callback=recorder)
    seconds = time.perf_counter() - begun - recorder.seconds
    found = run.predict(x_test)
    if not encoder.task.classification:
        found = found.rescaled(encoder.target_mean, encoder.target_std)
        y_test = encoder.target_mean + encoder.target_std * y_test
    return Outcome(
        trial.method,
        run.learner.parts(),
        {**scores(found, y_test), "seconds": seconds},
        seconds,
        recorder.curve(),
        _predictions(found, y_test, encoder) if trial.keep_predictions else None,
    )


class _CurveRecorder:
    """Notes training loss and the test log-likelihood at a few epochs, and the time that takes."""

    def __init__(self, recipe: Recipe, x: torch.Tensor, y: torch.Tensor, num_data: int) -> None:
        epochs = recipe.for_data(num_data).epochs or 1
        self._every = max(1, epochs // _CURVE_POINTS)
        self._last, self._x, self._y = epochs, x, y
        self._points: list[tuple[float, float, float]] = []
        self.seconds = 0.0

    def __call__(self, learner: Learner, state: State, figures: Epoch) -> None:
        epoch = int(figures["epoch"])
        if epoch % self._every and epoch != self._last:
            return
        begun = time.perf_counter()
        found = predict(learner, state, self._x, predictive_on_the_way(learner))
        score = float(found.log_prob(self._y).mean())
        self._points.append((epoch, figures["loss"], score))
        self.seconds += time.perf_counter() - begun

    def curve(self) -> Curve:
        """The curve so far."""
        epochs, losses, found = zip(*self._points, strict=True)
        return Curve(np.array(epochs), np.array(losses), np.array(found))


def _predictions(found: Prediction, y: torch.Tensor, encoder: Encoder) -> Predictions:
    if encoder.task.classification:
        bins = metrics.reliability(found.probs, y, bins=ECE_BINS)
        return ClassificationPredictions(
            y=y.numpy(),
            probabilities=found.probs.numpy(),
            classes=tuple(str(label) for label in encoder.classes),
            epistemic=found.epistemic.sum(-1).numpy(),
            aleatoric=found.aleatoric.sum(-1).numpy(),
            calibration=CalibrationBins(
                bins.confidence.numpy(), bins.accuracy.numpy(), bins.count.numpy()
            ),
        )
    lower, upper = found.interval(0.9)
    levels = coverage_levels()
    observed = metrics.coverage_curve(found.cdf(y).reshape(-1), levels)

    def column(values: torch.Tensor) -> Floats:
        return values.reshape(-1).numpy()

    return RegressionPredictions(
        y=column(y),
        mean=column(found.mean),
        epistemic_std=column(found.epistemic.sqrt()),
        aleatoric_std=column(found.aleatoric.sqrt()),
        lower=column(lower),
        upper=column(upper),
        coverage=CoverageCurve(column(levels), column(observed)),
    )


def _gather(name: str, outcomes: list[Outcome]) -> MethodResult:
    """The outcomes of one method over the splits."""
    mine = [outcome for outcome in outcomes if outcome.method == name]
    good = [outcome for outcome in mine if outcome.error is None]
    failed = [outcome.error for outcome in mine if outcome.error is not None]
    keys = list(good[0].metrics) if good else []
    return MethodResult(
        name=name,
        parts=good[0].parts if good else {},
        metrics={key: Statistic.of([o.metrics[key] for o in good]) for key in keys},
        seconds=sum(o.seconds for o in good) / len(good) if good else math.nan,
        curves=[o.curve for o in good if o.curve is not None],
        predictions=next((o.predictions for o in good if o.predictions is not None), None),
        error=f"in {len(failed)} of {len(mine)} splits: {failed[0]}" if failed else None,
    )


def _left_out(names: Iterable[str], options: dict[str, Any]) -> Iterator[str]:
    """What is asked of all methods but not every one has."""
    for option in options:
        without = [name for name in names if option not in option_names(find(name))]
        if without:
            yield f"{option} is not for {', '.join(without)}, which trained without it."


def _notes(splits: int, test_fraction: float, task: str) -> tuple[str, ...]:
    size = f"Each of {splits} random splits holds out {test_fraction:.0%} of the rows for testing"
    kind = {
        "regression": "log-likelihoods are per point, of the mixture over weight draws, in the "
        "target's units",
        "classification": f"ECE uses {ECE_BINS} bins of equal width",
    }
    return f"{size}, the same rows for every method; {kind[task]}.", (
        "Seconds are training time on one core, for one split."
    )
