"""From tables to tensors and back, with scales, levels and classes of the training rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bayesrule.app.data.columns import Column, LevelColumn, NumberColumn, fit_column
from bayesrule.app.data.errors import DataError, Faults, listing, nearest
from bayesrule.app.data.table import Floats, Level, Table, text_of
from bayesrule.app.data.targets import Target, class_codes, fit_target, target_numbers
from bayesrule.app.data.task import Task
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import tree

Missing = Literal["error", "impute"]
Unseen = Literal["error", "ignore"]
FORMAT = 1
_COLUMNS: dict[str, Any] = {kind.__name__: kind for kind in (NumberColumn, LevelColumn)}


@dataclass(frozen=True)
class Encoder:
    """Turns tables into tensors; fitted once on training rows, then the same for every table.

    `columns` are the encoded columns in order; a regression target is `mean + std × output`;
    `classes` are the labels in the order of their codes, none for regression; `notes` say in
    sentences what was left out or filled in; `decimal` is the decimal mark of the training file.
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
    decimal: str | None = None

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
        categories: Sequence[str] = (),
    ) -> Encoder:
        """Learn scales, levels and classes from training rows; all faults come in one DataError.

        Args:
            table: the training rows.
            target: the column to predict; a built-in table knows its own.
            task: ``"regression"`` or ``"classification"``; None decides from the target column.
            features: the columns to use; None uses all but the target.
            missing: what to do if a feature is missing or infinite: ``"error"``, or ``"impute"`` to
                fill in the median or the most frequent level and mark these rows in a new column.
            unseen: what to do about a level that training did not have: ``"error"``, or
                ``"ignore"`` to encode it as none of the known ones.
            categories: features to encode as levels although they are, or may be, numbers.
        """
        for name, got, kinds in (("missing", missing, Missing), ("unseen", unseen, Unseen)):
            if got not in get_args(kinds):
                known = listing(get_args(kinds))
                raise DataError(f"{name}={got!r} is not known; take one of {known}.")
        target = table.target if target is None else target
        if target is None:
            raise DataError(
                f"'{table.name}' does not say which column to predict; name it with target=. "
                f"Its columns are {listing(table.columns)}."
            )
        table.column(target)
        if len(table) < 2:
            raise DataError(f"'{table.name}' has {len(table)} row; learning takes at least 2.")
        names = _feature_names(table, target, features, categories)
        faults, fitted = Faults(), Target(Task("regression", ""))
        with faults.noted():
            fitted = fit_target(table, target, task)
        columns, notes = _fit_columns(table, names, categories, missing == "impute", faults)
        faults.refuse()
        _refuse_none(table, columns, notes)
        return cls(
            target,
            fitted.task,
            columns,
            fitted.mean,
            fitted.std,
            fitted.classes,
            missing,
            unseen,
            (*fitted.notes, *notes),
            table.decimal,
        )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`transform`, as ``colour=red`` for a level."""
        return tuple(name for column in self.columns for name in column.outputs)

    @property
    def num_outputs(self) -> int:
        """How many outputs a network needs: one for each class, or one."""
        return len(self.classes) if self.task.classification else 1

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes as text; different classes have different texts."""
        return tuple(text_of(label) for label in self.classes)

    def _read(self, table: Table) -> Table:
        """The table, read with the training file's decimal mark if it does not show its own."""
        return table if table.decimal else replace(table, decimal=self.decimal)

    def transform(self, table: Table) -> Tensor:
        """Return the features (n, d) float32; columns unknown to the encoder are ignored."""
        present = set(table.columns)
        absent = [column.name for column in self.columns if column.name not in present]
        if absent:
            raise DataError(
                f"'{table.name}' lacks {listing(absent)}, which the training data had."
                f"{nearest(absent[0], table.columns)} It has {listing(table.columns)}."
            )
        faults, parts, table = Faults(), list[Floats](), self._read(table)
        for column in self.columns:
            with faults.noted():
                part = column.encode(table, self.missing == "impute", self.unseen == "ignore")
                _refuse_overflow(part, column.outputs, table)
                parts.append(part)
        faults.refuse()
        return torch.from_numpy(np.column_stack(parts).astype(np.float32))

    def targets(self, table: Table) -> Tensor:
        """Return standardised targets (n, 1) float32, or class codes (n,) int64."""
        if self.task.classification:
            return self.original_targets(table)
        values = self.original_targets(table)
        scaled = (values - self.target_mean) / self.target_std
        _refuse_overflow(scaled.numpy(), (self.target,), table)
        return scaled.float()

    def tensors(self, table: Table) -> tuple[Tensor, Tensor]:
        """Return the features and the targets."""
        return self.transform(table), self.targets(table)

    def original_targets(self, table: Table) -> Tensor:
        """Return targets in the units of the table (n, 1) float64, or class codes (n,) int64."""
        table = self._read(table)
        if self.task.classification:
            return torch.tensor(class_codes(table, self.target, self.classes), dtype=torch.int64)
        return torch.from_numpy(target_numbers(table, self.target).copy()).unsqueeze(1)

    def original(self, prediction: Prediction) -> Prediction:
        """Return a prediction of standardised targets in the units of the table, in float64."""
        if self.task.classification:
            return prediction
        doubled = tree.map_tensors(prediction, Tensor.double)
        return doubled.rescaled(self.target_mean, self.target_std)

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
            content: dict[str, Any] = json.loads(text, object_hook=_with_tuples)
            if (version := content.pop("format")) != FORMAT:
                raise DataError(f"This encoder has format {version}; format {FORMAT} is read.")
            content["task"] = Task(**content["task"])
            entries = content.pop("columns")
            columns = tuple(_COLUMNS[entry.pop("kind")](**entry) for entry in entries)
            return cls(columns=columns, **content)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DataError(f"This is not a saved encoder: {error!r}.") from error


def _with_tuples(content: dict[str, Any]) -> dict[str, Any]:
    """The content with tuples, which json wrote as lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}


def _refuse_overflow(x: Floats, names: Sequence[str], table: Table) -> None:
    too_large = np.abs(x) > np.finfo(np.float32).max
    if too_large.any():
        row, place = (int(first) for first in np.argwhere(too_large)[0])
        raise DataError(
            f"Column '{names[place]}' of '{table.name}' is too large to scale in "
            f"{table.where([row])}."
        )


def _feature_names(
    table: Table, target: str, features: Sequence[str] | None, categories: Sequence[str]
) -> list[str]:
    for name, value in (("features", features), ("categories", categories)):
        if isinstance(value, str):
            raise DataError(f"{name} takes a list of names; got {value!r}. Write [{value!r}].")
    all_but_target = [name for name in table.columns if name != target]
    chosen = all_but_target if features is None else list(features)
    if target in (*chosen, *categories):
        raise DataError(f"Column '{target}' is the target; it cannot be a feature too.")
    for name in categories:
        table.column(name)
    if len(set(chosen)) != len(chosen):
        raise DataError(f"A feature is named twice in {listing(chosen)}.")
    return chosen


def _fit_columns(
    table: Table, names: Sequence[str], categories: Sequence[str], impute: bool, faults: Faults
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    columns: list[Column] = []
    notes: list[str] = []
    for name in names:
        with faults.noted():
            column, column_notes = fit_column(name, table, impute, name in categories)
            notes += column_notes
            if column is not None:
                columns.append(column)
                notes += [f"Column '{name}': {column.fill}."] if column.indicator else []
    return tuple(columns), tuple(notes)


def _refuse_none(table: Table, columns: Sequence[Column], notes: Sequence[str]) -> None:
    if not columns:
        reasons = " ".join(notes) or "No column besides the target was chosen."
        raise DataError(f"'{table.name}' has no feature to learn from. {reasons}")
