"""One method or baseline on one split of a table: its training and its scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bayesrule.app.baselines import Baseline
from bayesrule.app.data import Encoder, Table
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import Curve, Predictions
from bayesrule.app.report.contents import predictions_of
from bayesrule.execution.threads import one_core
from bayesrule.learner import Learner
from bayesrule.predicting.evaluate import scores
from bayesrule.predicting.predict import predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.meeting import side_by_side
from bayesrule.training.train import Epoch, predictive_on_the_way
from bayesrule.types import State

# Points of a learning curve: enough to see, few enough not to cost.
_CURVE_POINTS = 25
# So many splits of a method train together, if they have no more than so many rows in all.
_MOST_TOGETHER, _ROWS_TOGETHER = 4, 60_000


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

    def sharing_time(self, trials: int) -> Outcome:
        """The outcome of one of several trials that ran at the same time on the same core."""
        if "seconds" not in self.metrics:
            return self
        seconds = self.metrics["seconds"] / trials
        return replace(self, metrics={**self.metrics, "seconds": seconds})


def groups_of(trials: Sequence[Trial]) -> list[list[int]]:
    """The numbers of trials that run together: one method on a few splits.

    Steps of small nets cost little more for many nets than for one. Large tables have no such gain,
    and would take several times the memory. Groups do not depend on the number of processes, so
    that results do not either.
    """
    groups: list[list[int]] = []
    for number, trial in enumerate(trials):
        size = 1 if isinstance(trial.recipe, Baseline) else _together(len(trial.split.train))
        last = trials[groups[-1][0]] if groups else None
        alike = last is not None and last.recipe.method == trial.recipe.method
        if alike and len(groups[-1]) < size:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _together(rows: int) -> int:
    return max(1, min(_MOST_TOGETHER, _ROWS_TOGETHER // rows))


def run_trials(trials: Sequence[Trial]) -> list[Outcome]:
    """Trains and scores one method on several splits, together where possible, on one core.

    A failure becomes an outcome too. Seconds are each split's share of the time of all.
    """
    with one_core():
        outcomes = side_by_side([partial(_outcome, trial) for trial in trials])
    return [one.sharing_time(len(trials)) for one in outcomes]


def _outcome(trial: Trial) -> Outcome:
    try:
        return _train_and_score(trial)
    except Exception as problem:
        return Outcome(trial.recipe.method, error=f"{type(problem).__name__}: {problem}")


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
