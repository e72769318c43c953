"""Regression or classification: the rule and its reason."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesrule.app.data import DataError, Table
from bayesrule.app.data.columns import kind_of
from bayesrule.app.data.task import find_task, named_task


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        (["yes", "no", "yes"], "classification", "holds names"),
        ([True, False, True], "classification", "true or false"),
        (pd.Categorical([1, 2, 1]), "classification", "holds names"),
        ([0, 1, 1, 0], "classification", "0 or 1"),
        ([0.0, 1.0, 1.0], "classification", "0 or 1"),
        ([3] * 5 + [4] * 5, "classification", "2 different whole numbers"),
        ([3] * 5 + [4] * 4, "regression", "2 different numbers"),
        (list(range(20)) * 5, "classification", "20 different whole numbers"),
        (list(range(21)) * 5, "regression", "21 different numbers"),
        ([1.0, 2.0, 3.0] * 10, "regression", "3 different numbers"),
        (np.linspace(0, 1, 30), "regression", "30 different numbers"),
    ],
)
def test_rule(values: Any, kind: str, reason: str) -> None:
    task = find_task(Table.from_frame(pd.DataFrame({"t": values})), "t")
    assert task.kind == kind
    assert reason in task.reason
    assert "'t'" in task.reason


def test_the_caller_decides() -> None:
    assert named_task("regression", "t").kind == "regression"
    with pytest.raises(DataError, match="Did you mean 'classification'"):
        named_task("clasification", "t")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "number"),
        ([True, None], "number"),
        ([Decimal("1.5"), None], "number"),
        ([None, None], "number"),
        (pd.array([1, None], dtype="Int64"), "number"),
        (["a", None], "level"),
        (["1949-01", "1949-02"], "date"),
        (["2020-01-31", None], "date"),
        (["2020-01-31 10:00:00", "2020-02-01 10:00"], "date"),
        (["31/01/2020", "1.2.20"], "date"),
        (["2020-01-31", "never"], "level"),
        (["10-20", "20-30"], "level"),
        (pd.to_datetime(["2020-01-31"]), "date"),
        ([datetime.date(2020, 1, 31)], "date"),
        (pd.to_timedelta([1, 2], unit="D"), "date"),
        ([[1], [2]], "other"),
        ([1j, 2j], "other"),
        ([b"a", b"b"], "other"),
    ],
)
def test_what_a_column_holds(values: Any, kind: str) -> None:
    assert kind_of(pd.Series(values)) == kind
