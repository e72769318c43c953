"""From a table to tensors and back; scales, levels and classes come from the training rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from bayesrule.app.data.columns import (
    NOT_ENCODED,
    Column,
    Floats,
    Level,
    LevelColumn,
    NumberColumn,
    fit_column,
    kind_of,
    numbers_of,
    plain,
    refuse_missing,
    text_of,
    texts_of,
)
from bayesrule.app.data.errors import DataError, listing, nearest
from bayesrule.app.data.table import Table
from bayesrule.app.data.task import Task, find_task, named_task
from bayesrule.predicting.prediction import Prediction

Missing = Literal["error", "impute"]
Unseen = Literal["error", "ignore"]
FORMAT = 1


@dataclass(frozen=True)
class Encoder:
    """Learned once on training rows, then the same for every table.

    Attributes:
        target: the target column.
        task: regression or classification, and why.
        columns: the encoded columns in order.
        target_mean, target_std: moments of a regression target; y = mean + std × output.
        classes: the class labels in the order of their codes; empty for regression.
        missing: ``"error"``, or ``"impute"`` for medians and most frequent levels.
        unseen: ``"error"``, or ``"ignore"`` for levels that training did not have.
        notes: sentences about what was left out or filled in.
    """

    target: str
    task: Task
    columns: tuple[Column, ...]
    target_mean: float = 0.0
    target_std: float = 1.0
    classes: tuple[Level, ...] = ()
    missing: Missing = "error"
    unseen: Unseen = "error"
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        table: Table,
        target: str | None = None,
        task: str | None = None,
        features: Sequence[str] | None = None,
        *,
        missing: Missing = "error",
        unseen: Unseen = "error",
    ) -> Encoder:
        """Learn scales, levels and classes from training rows.

        Args:
            table: the training rows.
            target: the column to predict; a built-in table knows its own.
            task: ``"regression"`` or ``"classification"``; None decides from the target column.
            features: the columns to use; None uses all but the target.
            missing: what to do where a feature is missing or infinite.
            unseen: what to do where a later table has a level that training did not have.
        """
        _check_option("missing", missing, ("error", "impute"))
        _check_option("unseen", unseen, ("error", "ignore"))
        target = _target_name(table, target)
        values = table.column(target)
        if len(table) < 2:
            raise DataError(f"'{table.name}' has {len(table)} row; learning takes at least 2.")
        _refuse_unfit_target(table, target)
        kind = find_task(values, target) if task is None else named_task(task, target)
        columns, notes = _fit_columns(table, target, features, missing == "impute")
        classes = _fit_classes(table, target) if kind.classification else ()
        mean, std = (0.0, 1.0) if classes else _fit_moments(table, target)
        return cls(target, kind, columns, mean, std, classes, missing, unseen, notes)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`transform`, as ``colour=red`` for a level."""
        return tuple(name for column in self.columns for name in column.outputs)

    @property
    def num_outputs(self) -> int:
        """How many outputs a network needs: one for each class, or one."""
        return len(self.classes) if self.task.classification else 1

    def transform(self, table: Table) -> Tensor:
        """Return the features (n, d) float32; columns the encoder does not know are ignored."""
        present = set(table.columns)
        absent = [column.name for column in self.columns if column.name not in present]
        if absent:
            raise DataError(
                f"'{table.name}' lacks {listing(absent)}, which the training data had."
                f"{nearest(absent[0], table.columns)} It has {listing(table.columns)}."
            )
        impute, ignore = self.missing == "impute", self.unseen == "ignore"
        x = np.column_stack([column.encode(table, impute, ignore) for column in self.columns])
        _refuse_overflow(x, self.feature_names, table)
        return torch.from_numpy(x.astype(np.float32))

    def targets(self, table: Table) -> Tensor:
        """Return standardised targets (n, 1) float32, or class codes (n,) int64."""
        _refuse_unfit_target(table, self.target)
        if not self.task.classification:
            values = _target_numbers(table, self.target)
            scaled = (values - self.target_mean) / self.target_std
            _refuse_overflow(scaled[:, None], (self.target,), table)
            return torch.from_numpy(scaled.astype(np.float32)).unsqueeze(1)
        codes = {text_of(label): code for code, label in enumerate(self.classes)}
        texts, _ = texts_of(table.column(self.target))
        unknown = [row for row, text in enumerate(texts) if text not in codes]
        if unknown:
            raise DataError(
                f"Column '{self.target}' of '{table.name}' has the class {texts[unknown[0]]!r} in "
                f"{table.where(unknown)}, which the training data do not have. "
                f"Known: {listing(self.classes)}."
            )
        return torch.tensor([codes[text] for text in texts], dtype=torch.int64)

    def original_targets(self, table: Table) -> Tensor:
        """Return targets in the units of the table (n, 1), or class codes (n,) int64."""
        y = self.targets(table)
        return y if self.task.classification else self.target_mean + self.target_std * y

    def original(self, prediction: Prediction) -> Prediction:
        """Return a prediction of standardised targets in the units of the table."""
        if self.task.classification:
            return prediction
        return prediction.rescaled(self.target_mean, self.target_std)

    def notes_for(self, table: Table) -> tuple[str, ...]:
        """Say which columns of a later table are not used."""
        used = {self.target, *(column.name for column in self.columns)}
        extra = [name for name in table.columns if name not in used]
        return (f"Not used: {listing(extra)}.",) if extra else ()

    def to_json(self) -> str:
        """Return the encoder as JSON text; :meth:`from_json` gives an equal one back."""
        columns = [{"kind": type(column).__name__, **asdict(column)} for column in self.columns]
        return json.dumps({"format": FORMAT, **asdict(self), "columns": columns}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Encoder:
        """Rebuild an encoder from :meth:`to_json`."""
        try:
            content: dict[str, Any] = json.loads(text)
            if (version := content.pop("format")) != FORMAT:
                raise DataError(f"This encoder has format {version}; format {FORMAT} is read.")
            content["task"] = Task(**content["task"])
            content["columns"] = tuple(_column_from(entry) for entry in content["columns"])
            content["classes"] = tuple(content["classes"])
            content["notes"] = tuple(content["notes"])
            return cls(**content)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DataError(f"This is not a saved encoder: {error!r}.") from error


def _refuse_overflow(x: Floats, names: Sequence[str], table: Table) -> None:
    too_large = np.abs(x) > np.finfo(np.float32).max
    if too_large.any():
        row, place = (int(first) for first in np.argwhere(too_large)[0])
        raise DataError(
            f"Column '{names[place]}' of '{table.name}' is too large to scale in "
            f"{table.where([row])}."
        )


def _column_from(entry: dict[str, Any]) -> Column:
    kind = entry.pop("kind")
    if kind == NumberColumn.__name__:
        return NumberColumn(**entry)
    if kind == LevelColumn.__name__:
        return LevelColumn(**{**entry, "levels": tuple(entry["levels"])})
    raise KeyError(kind)


def _check_option(name: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise DataError(f"{name}={got!r} is not known; take one of {listing(choices)}.")


def _target_name(table: Table, target: str | None) -> str:
    if target is None and table.target is None:
        raise DataError(
            f"'{table.name}' does not say which column to predict; name the target. "
            f"Its columns are {listing(table.columns)}."
        )
    return cast("str", table.target if target is None else target)


def _feature_names(table: Table, target: str, features: Sequence[str] | None) -> list[str]:
    if features is None:
        return [name for name in table.columns if name != target]
    if isinstance(features, str):
        raise DataError(f"features takes a list of names; got {features!r}. Write [{features!r}].")
    chosen = list(features)
    for name in chosen:
        table.column(name)
    if target in chosen:
        raise DataError(f"Column '{target}' is the target; it cannot be a feature too.")
    if len(set(chosen)) != len(chosen):
        raise DataError(f"A feature is named twice in {listing(chosen)}.")
    return chosen


def _fit_columns(
    table: Table, target: str, features: Sequence[str] | None, impute: bool
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    columns: list[Column] = []
    notes: list[str] = []
    for name in _feature_names(table, target, features):
        fitted = fit_column(name, table, impute)
        if isinstance(fitted, str):
            notes.append(fitted)
            continue
        columns.append(fitted)
        if fitted.indicator:
            fill = (
                f"the median {fitted.median:g}"
                if isinstance(fitted, NumberColumn)
                else f"the most frequent value '{fitted.most_frequent}'"
            )
            notes.append(f"Column '{name}': missing values are filled with {fill} and marked.")
    if not columns:
        reasons = " ".join(notes) or "No column besides the target was chosen."
        raise DataError(f"'{table.name}' has no feature to learn from. {reasons}")
    return tuple(columns), tuple(notes)


def _refuse_unfit_target(table: Table, target: str) -> None:
    values = table.column(target)
    holes, kind = values.isna().to_numpy(dtype=bool), kind_of(values)
    if kind == "number":
        holes = ~np.isfinite(numbers_of(values)[0])
    refuse_missing(target, holes, table, "It is the target: delete these rows or fill them in.")
    if (what := NOT_ENCODED.get(kind)) and len(values):
        example = plain(values.iloc[0])
        raise DataError(f"The target '{target}' of '{table.name}' holds {what}: {example!r}.")


def _target_numbers(table: Table, target: str) -> Floats:
    values, bad = numbers_of(table.column(target))
    if bad.any():
        rows = np.flatnonzero(bad).tolist()
        example = plain(table.column(target).iloc[rows[0]])
        raise DataError(
            f"The target '{target}' of '{table.name}' must be numbers for regression; "
            f"got {example!r} in {table.where(rows)}. Use task='classification' for classes."
        )
    return values


def _fit_moments(table: Table, target: str) -> tuple[float, float]:
    values = _target_numbers(table, target)
    if values.min() == values.max():
        raise DataError(
            f"The target '{target}' of '{table.name}' is always {values[0]:g}: there is nothing "
            "to learn."
        )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean, std = float(values.mean()), float(values.std())
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise DataError(
            f"The target '{target}' of '{table.name}' spreads from {values.min():g} to "
            f"{values.max():g}, which cannot be scaled. Choose other units."
        )
    return mean, std


def _fit_classes(table: Table, target: str) -> tuple[Level, ...]:
    by_text = {text_of(value): plain(value) for value in table.column(target).unique()}
    if len(by_text) == 1:
        raise DataError(
            f"The target '{target}' of '{table.name}' has one class only, "
            f"{next(iter(by_text.values()))!r}: there is nothing to tell apart."
        )
    if len(by_text) > 20 and len(by_text) > len(table) / 2:
        raise DataError(
            f"The target '{target}' of '{table.name}' has {len(by_text)} different values in "
            f"{len(table)} rows, such as {listing(list(by_text.values())[:3])}: too many for "
            "classes. Choose another target, or task='regression' if they are numbers."
        )
    if all(isinstance(label, int | float) for label in by_text.values()):
        return tuple(sorted(by_text.values(), key=float))
    return tuple(sorted(by_text.values(), key=str))
