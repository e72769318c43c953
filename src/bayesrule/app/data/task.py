"""Whether a target column asks for regression or classification, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from bayesrule.app.data.columns import are_truth_values, kind_of
from bayesrule.app.data.errors import DataError, listing, nearest
from bayesrule.app.data.table import Table

TaskKind = Literal["regression", "classification"]

MOST_CLASSES = 20
LEAST_REPEATS = 5


@dataclass(frozen=True)
class Task:
    """Regression or classification; `reason` is a sentence that tells the user why."""

    kind: TaskKind
    reason: str

    @property
    def classification(self) -> bool:
        """Whether the target is a class."""
        return self.kind == "classification"


def named_task(kind: str, target: str) -> Task:
    """Return the task that the caller asked for."""
    known = get_args(TaskKind)
    for name in known:
        if kind == name:
            return Task(name, f"Column '{target}' is taken for {name}, as asked.")
    raise DataError(f"No task '{kind}'.{nearest(kind, known)} There are {listing(known)}.")


def find_task(table: Table, target: str) -> Task:
    """Decide between regression and classification by these rules, in order.

    Text, categories and truth values are classes. Numbers are classes if they are only 0 and 1,
    or whole (of integer type), with at most 20 different values of which each occurs at least
    5 times. All other numbers are a regression target.
    """
    from pandas.api import types

    values = table.column(target)
    if kind_of(values) == "level":
        return Task("classification", f"Column '{target}' holds names: classification.")
    if are_truth_values(values):
        return Task("classification", f"Column '{target}' is true or false: classification.")
    numbers, _ = table.numbers(target)
    levels, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    if levels.tolist() == [0.0, 1.0]:
        return Task("classification", f"Column '{target}' is 0 or 1: classification.")
    few = 0 < len(levels) <= MOST_CLASSES and int(counts.min()) >= LEAST_REPEATS
    if types.infer_dtype(values, skipna=True) == "integer" and few:
        return Task(
            "classification",
            f"Column '{target}' holds {len(levels)} different whole numbers, each at least "
            f"{LEAST_REPEATS} times: classification. Ask for regression if they measure something.",
        )
    what = "different number" if len(levels) == 1 else "different numbers"
    return Task("regression", f"Column '{target}' holds {len(levels)} {what}: regression.")
