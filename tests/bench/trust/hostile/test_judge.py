"""What a cell says, and exact standardisation: the measure that readers are held to."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trust.hostile.cells import meaning
from benchmarks.trust.hostile.judge import standardised
from benchmarks.trust.hostile.training import undone


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12", 12), (" -1.5e3 ", -1500.0), ("5.", 5.0), (".5", 0.5), ("+1", 1), ("-inf", -np.inf),
        ("NA", None), ("", None), (" ", None), ("True", True), ("FALSE", False), ("tRuE", "tRuE"),
        ("007", "007"), ("00.5", "00.5"), ("9" * 18, int("9" * 18)), ("9" * 19, "9" * 19),
        ("1_0", "1_0"), ("0x1", "0x1"), ("٣", "٣"), ("1,5", "1,5"), ("--1", "--1"), ("1e", "1e"),
        ("+-inf", "+-inf"), ("x ", "x "),
    ],
)  # fmt: skip
def test_cells(text: str, said: object) -> None:
    assert meaning(text) == said
    assert type(meaning(text)) is type(said)


def test_cells_with_decimal_commas() -> None:
    assert (meaning("2,5", ","), meaning("2.5", ","), meaning("1,2,3", ",")) == (
        2.5,
        "2.5",
        "1,2,3",
    )


def test_standardised_as_numpy_does_it() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 50)
    found, slack = standardised(values.tolist())
    np.testing.assert_allclose(found, (values - values.mean()) / values.std(), atol=1e-12)
    assert slack < 1e-10
    assert standardised([2.0, 2.0, None]) == ([0.0, 0.0, 0.0], 0.0)


def test_apostrophes_are_taken_away_where_they_were_put() -> None:
    assert [undone(text) for text in ("'=1", "''=1", "'x", "-5", "'-5")] == [
        "=1", "'=1", "'x", "-5", "'-5"
    ]  # fmt: skip
