"""Methods and baselines side by side on the same splits of one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from bayesrule.app.baselines import Baseline
from bayesrule.app.data import Encoder, Table, train_and_test
from bayesrule.app.lineup import Lineup, lineup
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import Comparison, Curve, MethodResult, Predictions, Statistic
from bayesrule.app.report.columns import order, primary
from bayesrule.app.report.contents import predictions_of
from bayesrule.app.workers import results
from bayesrule.execution.threads import one_core
from bayesrule.learner import Learner
from bayesrule.methods import find, option_names, record
from bayesrule.predicting.evaluate import ECE_BINS, scores
from bayesrule.predicting.predict import predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.train import Epoch, predictive_on_the_way
from bayesrule.types import State

# Points of a learning curve: enough to see, few enough not to cost.
_CURVE_POINTS = 25
_OF_SCORES = {
    "regression": "log-likelihoods are means per row, of the mixture over weight draws, in "
    "the target's units",
    "classification": f"ECE uses {ECE_BINS} bins of equal width",
}
_VALIDATION = {"regression": "test log-likelihood", "classification": "test NLL"}
_KILLED = "its process was killed, perhaps for lack of memory; fewer jobs or units need less"
Noise = Literal["constant", "by-row"]
"""Whether the noise of a regression target is the same in all rows or depends on the inputs."""


@dataclass(frozen=True)
class Split:
    """Training and test rows, encoded once for all methods by what the training rows show."""

    train: torch.Tensor
    test: torch.Tensor
    encoder: Encoder
    learned: tuple[torch.Tensor, torch.Tensor]
    inputs: torch.Tensor
    truth: torch.Tensor

    @classmethod
    def of(
        cls, table: Table, train: torch.Tensor, test: torch.Tensor, options: dict[str, Any]
    ) -> Split:
        """The split of a table with these row numbers for training and test."""
        train_table, test_table = table.rows(train), table.rows(test)
        # A category that only test rows have is encoded as none of the known ones.
        encoder = replace(Encoder.fit(train_table, **options), unseen="ignore")
        inputs, truth = encoder.transform(test_table), encoder.original_targets(test_table)
        return cls(train, test, encoder, encoder.tensors(train_table), inputs, truth)


@dataclass(frozen=True)
class Trial:
    """One method or baseline on one split: what a worker process gets."""

    split: Split
    recipe: Recipe | Baseline
    keep_predictions: bool


@dataclass(frozen=True)
class Outcome:
    """The scores of a trial, with its training time among the `metrics`, or its `error`."""

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
    every: bool = False,
    baselines: bool = True,
    noise: Noise = "constant",
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

    Without `methods`, one method of each group of close relatives takes part, or with `every` all
    that fit the task. `baselines` are models of scikit-learn, trained and scored on the same rows.

    joblib runs the trials: in `jobs` processes here, or, with `jobs=None`, on the backend that is
    set around the call (`joblib.parallel_config("dask")` for a Dask cluster).
    """
    begun = time.perf_counter()
    options = encoder_options or {}
    encoder = Encoder.fit(table, target, **options)
    kind, base = encoder.task.kind, recipe or Recipe()
    _refuse_unfit(splits, test_fraction, noise, kind)
    rows = train_rows(table, encoder, test_fraction)
    present = lineup(encoder, rows, methods, every=every, with_baselines=baselines)
    nets = [_recipe(name, base, encoder, noise) for name in present.methods]
    rivals = [Baseline(name, kind) for name in present.baselines]
    trials = _trials(table, encoder, options, [*nets, *rivals], splits, test_fraction, seed)
    outcomes = _run(trials, jobs, progress)
    beside = " beside baselines" if present.baselines else ""
    comparison = Comparison(
        title=f"{table.name}: {len(present.methods)} methods{beside}",
        dataset=table.name,
        task=kind,
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
            *present.notes,
            *_notes(present, nets, base.options, noise),
            _how_scored(splits, test_fraction, kind),
        ),
        methods=[
            *(_gather(name, outcomes) for name in present.methods),
            *(replace(_gather(name, outcomes), baseline=True) for name in present.baselines),
        ],
        validation_label=f"{_VALIDATION[kind]} (only shown, never used to choose)",
    )
    # The best come first, so that their colours are the most distinct ones.
    ranked = [comparison.methods[i] for i in order(comparison, primary(comparison))]
    return replace(comparison, methods=ranked)


def train_rows(table: Table, encoder: Encoder, test_fraction: float) -> int:
    """How many rows a split leaves for training."""
    return len(train_and_test(table, encoder, test_fraction, seed=0)[0])


def _refuse_unfit(splits: int, test_fraction: float, noise: str, task: str) -> None:
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}.")
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction lies strictly between 0 and 1, got {test_fraction}.")
    if noise not in get_args(Noise):
        raise ValueError(f"noise is 'constant' or 'by-row', got {noise!r}.")
    if noise == "by-row" and task == "classification":
        raise ValueError("noise='by-row' is for regression; the target here is a class.")


def run_trial(trial: Trial) -> Outcome:
    """Trains and scores one method on one split, on one core; a failure becomes an outcome too."""
    with one_core():
        try:
            return _train_and_score(trial)
        except Exception as problem:
            return Outcome(trial.recipe.method, error=f"{type(problem).__name__}: {problem}")


def _recipe(method: str, base: Recipe, encoder: Encoder, noise: Noise) -> Recipe:
    """The common recipe for one method, without the options that the method does not have."""
    names = option_names(find(method))
    options = {name: value for name, value in base.options.items() if name in names}
    recipe = replace(base, method=method, options=options)
    if encoder.task.classification:
        return replace(recipe, likelihood="categorical")
    # Linear models need a convex loss; the loss of mean and noise together is not convex.
    by_row = noise == "by-row" and not recipe.linear
    return replace(recipe, likelihood="heteroscedastic" if by_row else "gaussian")


def _trials(
    table: Table,
    encoder: Encoder,
    options: dict[str, Any],
    recipes: Sequence[Recipe | Baseline],
    splits: int,
    test_fraction: float,
    seed: int,
) -> list[Trial]:
    """Every recipe on every split; a split that cannot be encoded is refused before training."""
    fixed = {**options, "target": encoder.target, "task": encoder.task.kind}
    trials = []
    for split in range(splits):
        rows = Split.of(table, *train_and_test(table, encoder, test_fraction, seed + split), fixed)
        seeded = [replace(recipe, seed=seed + split) for recipe in recipes]
        trials += [Trial(rows, recipe, split == 0) for recipe in seeded]
    return trials


def _run(
    trials: list[Trial], jobs: int | None, progress: Callable[[int, int, Outcome], None] | None
) -> list[Outcome]:
    """The outcomes in the order of the trials, whichever finished first."""
    done: dict[int, Outcome] = {}
    for number, outcome in results(run_trial, trials, jobs, _killed):
        done[number] = outcome
        if progress is not None:
            progress(len(done), len(trials), outcome)
    return [done[number] for number in range(len(trials))]


def _killed(trial: Trial) -> Outcome:
    return Outcome(trial.recipe.method, error=_KILLED)


def _train_and_score(trial: Trial) -> Outcome:
    split = trial.split
    encoder, (x, y), x_test, truth = split.encoder, split.learned, split.inputs, split.truth
    trial.recipe.for_data(len(y))  # slow imports must not count as training time
    begun = time.perf_counter()
    recipe = trial.recipe.chosen(x, y, encoder.num_outputs)
    recorder = _CurveRecorder(recipe.epochs or 1, encoder, x_test, truth)
    run = recipe.fit(x, y, encoder.num_outputs, progress=False, callback=recorder)
    seconds = time.perf_counter() - begun - recorder.seconds
    prediction = encoder.original(run.predict(x_test))
    return Outcome(
        trial.recipe.method,
        run.parts(),
        {**scores(prediction, truth), "seconds": seconds},
        recorder.curve(),
        predictions_of(prediction, truth, encoder.classes) if trial.keep_predictions else None,
    )


class _CurveRecorder:
    """Records training loss and test score at a few epochs, and how long the recording took.

    The score is the log-likelihood in the target's units for numbers, the NLL for classes.
    """

    def __init__(self, epochs: int, encoder: Encoder, x: torch.Tensor, truth: torch.Tensor) -> None:
        self._every, self._last = max(1, epochs // _CURVE_POINTS), epochs
        self._encoder, self._x, self._truth = encoder, x, truth
        self._points: list[tuple[float, float, float]] = []
        self.seconds = 0.0

    def __call__(self, learner: Learner, state: State, figures: Epoch) -> None:
        epoch = int(figures["epoch"])
        if epoch % self._every and epoch != self._last:
            return
        begun = time.perf_counter()
        prediction = predict(learner, state, self._x, predictive_on_the_way(learner))
        self._points.append((epoch, figures["loss"], self._score(prediction)))
        self.seconds += time.perf_counter() - begun

    def _score(self, prediction: Prediction) -> float:
        score = float(self._encoder.original(prediction).log_prob(self._truth).mean())
        return -score if self._encoder.task.classification else score

    def curve(self) -> Curve | None:
        """The curve so far; None for a model that does not learn by epochs."""
        return Curve(*np.transpose(self._points)) if self._points else None


def _gather(name: str, outcomes: list[Outcome]) -> MethodResult:
    """The outcomes of one method over the splits."""
    trials = [outcome for outcome in outcomes if outcome.method == name]
    good = [outcome for outcome in trials if outcome.error is None]
    failed = [outcome.error for outcome in trials if outcome.error is not None]
    keys = list(good[0].metrics) if good else []
    return MethodResult(
        name=name,
        parts=good[0].parts if good else {},
        metrics={key: Statistic.of([o.metrics[key] for o in good]) for key in keys},
        curves=[o.curve for o in good if o.curve is not None],
        predictions=next((o.predictions for o in good if o.predictions is not None), None),
        error=f"in {len(failed)} of {len(trials)} splits: {failed[0]}" if failed else None,
    )


def _how_scored(splits: int, test_fraction: float, task: str) -> str:
    return (
        f"Each of {splits} random splits holds out {test_fraction:.0%} of the rows for testing, "
        f"the same rows for every method; {_OF_SCORES[task]}."
    )


def _notes(
    present: Lineup, nets: Sequence[Recipe], options: Iterable[str], noise: Noise
) -> Iterator[str]:
    """Which of the chosen options had no effect on some of the methods."""
    for option in options:
        without = [name for name in present.methods if not record(name).heeds(option)]
        if without:
            yield f"{option} has no effect on {', '.join(without)}, which trained without it."
    if noise == "by-row":
        constant = [net.method for net in nets if net.likelihood != "heteroscedastic"]
        names = ", ".join([*constant, *present.baselines])
        same = f" It is the same in all rows for {names}, which cannot do this." if names else ""
        yield f"The noise depends on the inputs.{same}"
