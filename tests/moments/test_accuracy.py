"""Moment rules against draws over the regimes of users, and the table of them in the docs."""

from __future__ import annotations

import pytest

from moments import accuracy
from moments.accuracy import Case


@pytest.mark.parametrize("case", accuracy.CASES, ids=lambda case: f"{case.rule}, {case.regime}")
def test_a_rule_is_within_its_bounds_and_the_docs_say_so(case: Case) -> None:
    bias, low, high = accuracy.measured(case)
    assert bias < case.bounds[0]
    assert 1.0 - case.bounds[1] < low
    assert high < 1.0 + case.bounds[1]
    rows = accuracy.PAGE.read_text().splitlines()
    start = f"| {case.rule} | {case.regime} |"
    written = next(row for row in rows if row.startswith(start)).split("|")[3:5]
    numbers = [float(word) for cell in written for word in cell.split(" to ")]
    assert numbers == pytest.approx([bias, low, high], abs=0.05)
