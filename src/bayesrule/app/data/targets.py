"""The target column: its task, its classes or moments, and what makes it unfit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayesrule.app.data import cells
from bayesrule.app.data.columns import NOT_ENCODED, kind_of, mixture, refuse_missing
from bayesrule.app.data.errors import DataError, listing
from bayesrule.app.data.spread import moments_of
from bayesrule.app.data.table import Floats, Level, Mask, Table, plain
from bayesrule.app.data.task import MOST_CLASSES, Task, find_task, named_task

# Variances of predictions are squares of the spread and must not overflow either.
_SMALLEST, _LARGEST = 1e-150, 1e150


@dataclass(frozen=True)
class Target:
    """The task of a target, its moments (regression) or classes, and notes on it."""

    task: Task
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[Level, ...] = ()
    notes: tuple[str, ...] = ()


def fit_target(table: Table, name: str, task: str | None) -> Target:
    """Learn the moments or the classes of the target; without a `task`, decide which it is."""
    _refuse_unfit(table, name)
    note = None
    if task is None and kind_of(table.column(name)) == "level":
        note = mixture(name, table)
    decided = find_task(table, name) if task is None else named_task(task, name)
    notes = (note,) if note else ()
    if decided.classification:
        return Target(decided, classes=_fit_classes(table, name), notes=notes)
    return Target(decided, *_fit_moments(table, name), notes=notes)


def _refuse_unfit(table: Table, name: str) -> None:
    """Raise if training targets are missing, or neither numbers nor names."""
    values = table.column(name)
    holes, kind = values.isna().to_numpy(dtype=bool), kind_of(values)
    if kind == "number":
        holes = ~np.isfinite(table.numbers(name)[0])
    _refuse_holes(table, name, holes)
    if (what := NOT_ENCODED.get(kind)) and len(values):
        raise _unfit(table, name, f"holds {what}: {cells.brief(plain(values.iloc[0]))}.")


def _refuse_holes(table: Table, name: str, holes: Mask) -> None:
    refuse_missing(name, holes, table, "It is the target: delete these rows or fill them in.")


def target_numbers(table: Table, name: str) -> Floats:
    """Return the targets of regression in their own units."""
    values, bad = table.numbers(name)
    _refuse_holes(table, name, ~np.isfinite(values) & ~bad)
    if bad.any():
        got = table.doubts(name, np.flatnonzero(bad).tolist())
        advice = "Use task='classification' for classes."
        raise _unfit(table, name, f"must be numbers for regression; got {got}. {advice}")
    return values


def class_codes(table: Table, name: str, classes: tuple[Level, ...]) -> list[int]:
    """Return the code of each row's class; classes that are numbers are compared as numbers.

    The classes alone decide what a cell means: `inf` may be a name, and so may a date.
    """
    _refuse_holes(table, name, table.column(name).isna().to_numpy(dtype=bool))
    codes = {label: code for code, label in enumerate(classes)}
    if any(isinstance(label, str) for label in classes):
        labels = table.texts(name)[0].tolist()
    else:
        labels, _ = table.exact(name, truth=all(isinstance(label, bool) for label in classes))
    found_codes = [codes.get(plain(label), -1) for label in labels]
    if unknown := [row for row, code in enumerate(found_codes) if code < 0]:
        raise DataError(
            f"Column '{name}' of '{table.name}' has the class {cells.brief(labels[unknown[0]])} in "
            f"{table.where(unknown)}, which the training data do not have. "
            f"Known: {listing(classes)}."
        )
    return found_codes


def _unfit(table: Table, target: str, what: str) -> DataError:
    return DataError(f"The target '{target}' of '{table.name}' {what}")


def _fit_moments(table: Table, target: str) -> tuple[float, float]:
    values = target_numbers(table, target)
    low, high = values.min(), values.max()
    if low == high:
        raise _unfit(table, target, f"is always {low:g}: there is nothing to learn.")
    mean, std = moments_of(values)
    if not _SMALLEST < std < _LARGEST:
        what = f"spreads from {low:g} to {high:g}, which cannot be scaled. Choose other units."
        raise _unfit(table, target, what)
    return mean, std


def _fit_classes(table: Table, target: str) -> tuple[Level, ...]:
    classes = list(dict.fromkeys(plain(value) for value in table.column(target).unique()))
    if len(classes) == 1:
        what = f"has one class only, {classes[0]!r}: there is nothing to tell apart."
        raise _unfit(table, target, what)
    if len(classes) > MOST_CLASSES and len(classes) > len(table) / 2:
        what = (
            f"has {len(classes)} different values in {len(table)} rows, such as "
            f"{listing(classes[:3])}: too many for classes. Choose another target, or "
            "task='regression' if they are numbers."
        )
        raise _unfit(table, target, what)
    numbers = not any(isinstance(label, str) for label in classes)
    return tuple(sorted(classes, key=None if numbers else str))
