"""Cells of text: which are numbers for certain, and what is said of the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.app.data import cells

LOOKS = st.text("0123456789.,eE+-−%$?'() _x", max_size=8)


@pytest.mark.parametrize(
    "cell", ["0", "12", "-3", "+4", "1.", ".5", "0.50", "1e-5", "-1.5E+3", " 7 "]
)
def test_numbers(cell: str) -> None:
    assert cells.number(cell) == float(cell)


def test_whole_numbers_are_exact() -> None:
    assert cells.number("900719925474099267") == 900719925474099267
    assert cells.number("-inf") == -math.inf


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("0215", "leading zero"),
        ("-007", "leading zero"),
        ("001.9", "leading zero"),
        ("1" * 19, "more than 18 digits"),
        ("9" * 400, "more than 18 digits"),
        ("8,650", "may be 8.650 or 8650"),
        ("1,5", "a comma"),
        ("1,234,567", "a comma"),
        ("5%", "a percent sign"),
        ("$5", "the sign '$'"),
        ("5 €", "a space"),
        ("(5)", "the sign '('"),
        ("−5", "a minus other than '-'"),
        ("?", "a placeholder"),
        ("--", "a placeholder"),
        ("1_000", "text"),
        ("١٢", "text"),
        ("0x1f", "text"),
        ("5kg", "text"),
        ("10–20", "text"),
    ],
)
def test_what_is_not_certain_has_a_reason(cell: str, reason: str) -> None:
    assert cells.number(cell) is None
    assert cells.doubt(cell) == reason


def test_decimal_commas() -> None:
    assert cells.number("8,650", decimal=",") == 8.65
    assert cells.number("8.650", decimal=",") is None
    assert cells.number("1,234,5", decimal=",") is None
    assert "decimal commas" in cells.doubt("8.650", decimal=",")
    told = {cell: cells.is_decimal_comma(cell) for cell in ("2,5", "0,125", "1234,567", "8,650")}
    assert told == {"2,5": True, "0,125": True, "1234,567": True, "8,650": False}


@given(st.lists(LOOKS, max_size=4), st.sampled_from([None, ".", ","]))
def test_a_column_is_read_as_its_cells_are(column: list[str], decimal: str | None) -> None:
    one_by_one = [cells.number(cell, decimal) for cell in column]
    together = cells.numbers(column, decimal)
    assert together == (None if None in one_by_one else one_by_one)


@given(LOOKS)
def test_numbers_are_those_of_python_and_every_cell_has_a_word(cell: str) -> None:
    found = cells.number(cell)
    assert found is None or found == float(cell)
    assert cells.doubt(cell)
