"""Methods at their defaults, and baselines, on one split of a table, as `bayesrule fit` trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule.app import baselines
from bayesrule.app.data import Encoder, Table
from bayesrule.app.data.errors import require
from bayesrule.app.lineup import lineup
from bayesrule.app.recipe import Recipe
from bayesrule.app.trials import Split, Trial, run_trials
from bayesrule.methods import METHODS, find
from benchmarks.data.uci import Floats, uci, uci_set
from benchmarks.defaults.rows import Row, Rows
from benchmarks.defaults.standings import standings
from benchmarks.trust.families import FAMILIES

UCI_METHODS = (
    *("noisy_kfac", "vogn", "ivon", "laplace", "tagi", "mean_field", "variational_laplace", "map"),
    *("gradient boosting", "random forest"),
)
BASELINES = tuple(
    dict.fromkeys([*baselines.names("regression"), *baselines.names("classification")])
)


@dataclass(frozen=True)
class Sheet:
    """A table whose first `train` rows are for learning and whose others are for testing."""

    table: Table
    task: str
    train: int

    @property
    def options(self) -> dict[str, Any]:
        """How its columns are encoded."""
        return {"target": "y", "task": self.task}

    def rows(self) -> tuple[Tensor, Tensor]:
        """The numbers of the rows for learning and for testing."""
        every = torch.arange(len(self.table))
        return every[: self.train], every[self.train :]

    def encoder(self) -> Encoder:
        """Scales and classes from the training rows."""
        return Encoder.fit(self.table.rows(self.rows()[0]), **self.options)


def _sheet(name: str, x: Floats, y: Floats, train: int, *, classes: bool = False) -> Sheet:
    pandas = require("pandas", "Working with tables")
    columns = {f"x{i}": x[:, i] for i in range(x.shape[1])}
    frame = pandas.DataFrame(columns | {"y": y.astype(np.int64) if classes else y})
    task = "classification" if classes else "regression"
    return Sheet(Table(frame, name, "y"), task, train)


def generated(name: str, seed: int) -> Sheet:
    """A table of a family; the seed determines the function and the rows."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(name)])
    found = FAMILIES[name](rng)
    return _sheet(name, found.x, found.y, found.train, classes=found.classes)


def standard(name: str, split: int) -> Sheet:
    """A standard split of a UCI set."""
    one = uci(name, split)
    x, y = np.concatenate([one.x_train, one.x_test]), np.concatenate([one.y_train, one.y_test])
    return _sheet(name, x, y, len(one.y_train))


SOURCES: dict[str, Callable[[str, int], Sheet]] = {"families": generated, "defaults": standard}
"""Where tables come from, by the name of the benchmark."""


def families(
    names: Sequence[str], seeds: int, methods: Sequence[str] | None = None, *, every: bool = False
) -> Rows:
    """Generated tables, several of each family, for the methods that are worth their time.

    With `every`, for all methods that fit.
    """
    items = []
    for seed in range(seeds):
        for name in names:
            here = _present(generated(name, seed), every)
            chosen = here if methods is None else [one for one in methods if one in here]
            items += [{"set": name, "part": seed, "method": method} for method in chosen]
    return Rows("families", {}, items, _generated_row, standings)


def _present(sheet: Sheet, every: bool) -> list[str]:
    found = lineup(sheet.encoder(), sheet.train, every=every)
    return [*found.methods, *found.baselines]


def uci_splits(names: Sequence[str], splits: int | None, methods: Sequence[str]) -> Rows:
    """The first `splits` standard splits of UCI sets; all if it is None."""
    most = {name: min(splits or math.inf, uci_set(name).n_splits) for name in names}
    items = [
        {"set": name, "part": split, "method": method}
        for split in range(int(max(most.values())))
        for name in names
        if split < most[name]
        for method in methods
    ]
    return Rows("defaults", {}, items, _standard_row, standings)


def _generated_row(**item: Any) -> Row:
    return row("families", **item)


def _standard_row(**item: Any) -> Row:
    return row("defaults", **item)


def row(source: str, set: str, part: int, method: str) -> Row:
    """The scores of one method on the test rows, in units of standardised targets.

    `constant` is the log-likelihood of a prediction that ignores the inputs.
    """
    sheet = SOURCES[source](set, part)
    train, test = sheet.rows()
    recipe = _recipe(method, sheet.task, seed=part)
    split = Split.of(sheet.table, train, test, sheet.options)
    (outcome,) = run_trials([Trial(split, recipe, False)])
    if outcome.error is not None:
        return {"failed": outcome.error}
    found, encoder = outcome.metrics, split.encoder
    if sheet.task == "classification":
        scores = {"log_likelihood": -found["nll"], "accuracy": found["accuracy"]}
    else:
        scale = encoder.target_std
        scores = {
            "log_likelihood": found["log_likelihood"] + math.log(scale),
            "rmse": found["rmse"] / scale,
            "coverage_90": found["coverage_90"],
        }
    if not math.isfinite(scores["log_likelihood"]):
        return {"failed": f"its log-likelihood is {scores['log_likelihood']}"}
    known, new = (encoder.targets(sheet.table.rows(rows)) for rows in (train, test))
    figures = {"constant": _constant(known, new), "seconds": found["seconds"]}
    if outcome.curve is not None:
        figures["epochs"] = float(outcome.curve.epochs[-1])
    return {**scores, **figures}


def _recipe(method: str, task: str, seed: int) -> Recipe | baselines.Baseline:
    if method in baselines.names(task):
        return baselines.Baseline(method, task, seed)
    likelihood = "categorical" if task == "classification" else "gaussian"
    return Recipe(method, likelihood, seed=seed)


def _constant(train: Tensor, test: Tensor) -> float:
    """The log-likelihood of the frequencies of classes, or of N(0, 1) for standardised numbers."""
    if not train.is_floating_point():
        return float((train.bincount() / len(train)).log()[test].mean())
    return float(torch.distributions.Normal(0.0, 1.0).log_prob(test).mean())


def known_names(methods: Sequence[str]) -> list[str]:
    """The methods and baselines of these names; a ValueError for an unknown one."""
    return [one if one in BASELINES else find(one).__name__ for one in methods]


__all__ = ["BASELINES", "METHODS", "families", "known_names", "row", "uci_splits"]
