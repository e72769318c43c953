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
from bayesrule.app.report import Comparison, Curve, MethodResult, Predictions, Statistic
from bayesrule.app.report.contents import predictions_of
from bayesrule.learner import Learner
from bayesrule.methods import METHODS, Need, find, option_names, record
from bayesrule.predicting.evaluate import ECE_BINS, scores
from bayesrule.predicting.predict import predict
from bayesrule.training.train import Epoch, predictive_on_the_way
from bayesrule.types import State

# Points of a learning curve: enough to see, few enough not to cost.
_CURVE_POINTS = 25


@dataclass(frozen=True)
class Trial:
    """One method on one split, as it is handed to a worker."""

    table: Table
    encoder_options: dict[str, Any]
    recipe: Recipe
    train: torch.Tensor
    test: torch.Tensor
    keep_predictions: bool

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.recipe.method


@dataclass(frozen=True)
class Outcome:
    """The parts, scores, learning curve and predictions of a trial, or the `error` it ended with.

    `metrics` hold the training time too, as "seconds".
    """

    method: str
    parts: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
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
    recipes = [_recipe(name, base, encoder) for name in names]
    trials = _trials(table, encoder, options, recipes, splits, test_fraction, seed)
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
            *_ignored_options(names, base.options),
        ),
        methods=[_gather(name, outcomes) for name in names],
        validation_label="test log-likelihood (only shown, never used to choose)",
    )


def applicable(methods: Sequence[str] | None, task: str) -> list[str]:
    """The names of the methods; where none are named, of all that fit the task."""
    unfit = [name for name in METHODS if Need.REAL_TARGETS in record(name).needs]
    unfit = unfit if task == "classification" else []
    if methods is None:
        # The nets for tables have no layers that would bring binary weights to scale.
        scaled = [name for name in METHODS if Need.SCALED_LAYERS in record(name).needs]
        return [name for name in METHODS if name not in (*unfit, *scaled)]
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
    """Keeps torch on one core while any trial runs; trials may be threads of one process."""

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


def _recipe(method: str, base: Recipe, encoder: Encoder) -> Recipe:
    """The common recipe for one method, with those of its options that the method has."""
    likelihood = "categorical" if encoder.task.classification else "gaussian"
    names = option_names(find(method))
    options = {name: value for name, value in base.options.items() if name in names}
    return replace(base, method=method, likelihood=likelihood, options=options)


def _trials(
    table: Table,
    encoder: Encoder,
    options: dict[str, Any],
    recipes: Sequence[Recipe],
    splits: int,
    test_fraction: float,
    seed: int,
) -> list[Trial]:
    """Every recipe on every split; a split that cannot be encoded is refused before training."""
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}.")
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction lies strictly between 0 and 1, got {test_fraction}.")
    labels = encoder.targets(table) if encoder.task.classification else None
    fractions = (1.0 - test_fraction, test_fraction)
    fixed = {**options, "target": encoder.target, "task": encoder.task.kind}
    trials = []
    for split in range(splits):
        train, test = split_rows(len(table), fractions, seed=seed + split, stratify=labels)
        if len(train) < 2:
            raise DataError(
                f"'{table.name}' has {len(table)} rows, and test_fraction {test_fraction:g} leaves "
                f"{len(train)} of them to learn from; at least 2 are needed."
            )
        Encoder.fit(table.rows(train), **fixed)
        seeded = [replace(recipe, seed=seed + split) for recipe in recipes]
        trials += [Trial(table, fixed, recipe, train, test, split == 0) for recipe in seeded]
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
    # A category that occurs in the test rows only is encoded as none of the known ones.
    encoder = replace(fitted, unseen="ignore")
    test = trial.table.rows(trial.test)
    x, y, x_test = encoder.transform(rows), encoder.targets(rows), encoder.transform(test)
    recorder = _CurveRecorder(trial.recipe, x_test, encoder.targets(test), len(y))
    begun = time.perf_counter()
    run = trial.recipe.fit(x, y, encoder.num_outputs, progress=False, callback=recorder)
    seconds = time.perf_counter() - begun - recorder.seconds
    prediction, truth = encoder.original(run.predict(x_test)), encoder.original_targets(test)
    return Outcome(
        trial.method,
        run.learner.parts(),
        {**scores(prediction, truth), "seconds": seconds},
        recorder.curve(),
        predictions_of(prediction, truth, encoder.classes) if trial.keep_predictions else None,
    )


class _CurveRecorder:
    """Records training loss and test log-likelihood at a few epochs, and how long that took."""

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
        prediction = predict(learner, state, self._x, predictive_on_the_way(learner))
        score = float(prediction.log_prob(self._y).mean())
        self._points.append((epoch, figures["loss"], score))
        self.seconds += time.perf_counter() - begun

    def curve(self) -> Curve:
        """The curve so far."""
        return Curve(*np.transpose(self._points))


def _gather(name: str, outcomes: list[Outcome]) -> MethodResult:
    """The outcomes of one method over the splits."""
    trials = [outcome for outcome in outcomes if outcome.method == name]
    good = [outcome for outcome in trials if outcome.error is None]
    failed = [outcome.error for outcome in trials if outcome.error is not None]
    keys = list(good[0].metrics) if good else []
    metrics = {key: Statistic.of([o.metrics[key] for o in good]) for key in keys}
    return MethodResult(
        name=name,
        parts=good[0].parts if good else {},
        metrics=metrics,
        seconds=metrics["seconds"].mean if good else math.nan,
        curves=[o.curve for o in good if o.curve is not None],
        predictions=next((o.predictions for o in good if o.predictions is not None), None),
        error=f"in {len(failed)} of {len(trials)} splits: {failed[0]}" if failed else None,
    )


def _ignored_options(names: Iterable[str], options: dict[str, Any]) -> Iterator[str]:
    """A note for each option that some of the methods do not have."""
    for option in options:
        without = [name for name in names if option not in option_names(find(name))]
        if without:
            yield f"{option} is not an option of {', '.join(without)}, which trained without it."


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
