"""The columns of predictions: how they are made, checked to be finite, and written as csv."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.predicting.prediction import Prediction

Columns = dict[str, list[Any]]
# A spreadsheet runs text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# An input this many standard deviations from the training mean explains a prediction that failed.
_FAR = 100.0


def columns(prediction: Prediction, encoder: Encoder, level: float) -> Columns:
    """The columns of a prediction by name, one value for each row."""
    if encoder.task.classification:
        labels = [encoder.classes[int(i)] for i in prediction.labels]
        probs = zip(encoder.classes, prediction.probs.T.tolist(), strict=True)
        return {
            # The prefix keeps the target's name apart from those of the other columns.
            f"predicted_{encoder.target}": labels,
            **{f"p({name})": column for name, column in probs},
            "entropy": prediction.entropy.tolist(),
            "mutual_information": prediction.mutual_information.tolist(),
        }
    lower, upper = prediction.interval(level)
    figures = {
        "mean": prediction.mean,
        "std": prediction.std,
        "epistemic_std": prediction.epistemic.sqrt(),
        "aleatoric_std": prediction.aleatoric.sqrt(),
        f"lower_{level}": lower,
        f"upper_{level}": upper,
    }
    return {name: value.reshape(-1).tolist() for name, value in figures.items()}


def rows(figures: Columns) -> list[dict[str, Any]]:
    """Figures by column as one dict for each row."""
    return [dict(zip(figures, row, strict=True)) for row in zip(*figures.values(), strict=True)]


def with_ids(figures: Columns, table: Table, name: str | None) -> Columns:
    """The figures, after a column of the table that identifies the rows, spelled as in its file."""
    if name is None:
        return figures
    ids = table.as_written(name)
    if name in figures:
        raise DataError(
            f"Column '{name}' of '{table.name}' cannot be carried along: the predictions have a "
            "column of that name. Rename it."
        )
    return {name: ids, **figures}


def refuse_not_finite(figures: Mapping[str, Sequence[Any]], table: Table, encoder: Encoder) -> None:
    """Raises where a figure is infinite or not a number, and names its row and column."""
    for name, values in figures.items():
        numbers = (value if isinstance(value, float) else 0.0 for value in values)
        bad = [row for row, value in enumerate(numbers) if not math.isfinite(value)]
        if bad:
            raise DataError(
                f"The predicted '{name}' is {values[bad[0]]} in {table.where(bad)}, so nothing was "
                f"written. {_reason(table.rows(bad[:1]), encoder)}"
            )


def _reason(row: Table, encoder: Encoder) -> str:
    inputs = encoder.transform(row)[0]
    furthest = int(inputs.abs().argmax())
    if abs(inputs[furthest]) < _FAR:
        return "Training has diverged: fit again, with a smaller learning_rate."
    return (
        f"There '{encoder.feature_names[furthest]}' is {abs(float(inputs[furthest])):.3g} standard "
        "deviations from the mean of the training data: mend this row or leave it out."
    )


def as_csv(content: Columns) -> tuple[str, int]:
    """Csv text whose numbers read back exactly, and how many cells were escaped.

    Text that a spreadsheet would run as a formula gets an apostrophe in front. So does a formula
    that already has apostrophes in front, so that different texts stay different.

    >>> as_csv({"a=": ["=1+1", "-1"], "b": [0.1, 100000001.5]})
    ("a=,b\\n'=1+1,0.1\\n-1,100000001.5\\n", 1)
    """
    rows = [list(content), *zip(*content.values(), strict=True)]
    safe = [[_harmless(cell) for cell in row] for row in rows]
    pairs = zip(rows, safe, strict=True)
    changed = sum(a != b for old, new in pairs for a, b in zip(old, new, strict=True))
    return "".join(map(_line, safe)), changed


def _line(cells: Sequence[Any]) -> str:
    """One row; only with the line end \\r\\n does the writer quote every kind of line end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _harmless(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and _is_formula(cell.lstrip("'")) else cell


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet would run a text; a number such as -5 or +1e3 is none.

    >>> _is_formula("=A1"), _is_formula("-5"), _is_formula("-5+A1"), _is_formula("a=b")
    (True, False, True, False)
    """
    if not text.startswith(_FORMULA):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
