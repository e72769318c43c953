"""Tables to tensors: learned on training rows, faults named by column, row and line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesrule.app.data import DataError, Encoder, Table, read_table

TRAIN = {
    "size": [1.0, 2.0, 3.0, 6.0],
    "old": [True, False, False, True],
    "colour": ["red", "blue", "red", "green"],
    "same": [7, 7, 7, 7],
    "price": [10.0, 20.0, 30.0, 60.0],
}


def table(columns: dict[str, Any], **changes: Any) -> Table:
    return Table.from_frame(pd.DataFrame({**columns, **changes}), "train")


def from_csv(folder: Path, text: str, name: str = "t.csv") -> Table:
    (folder / name).write_text(text)
    return read_table(folder / name)


def test_features_are_standardised_and_one_hot() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    x = encoder.transform(table(TRAIN))
    assert encoder.feature_names == ("size", "old", "colour=blue", "colour=green", "colour=red")
    assert x.dtype == torch.float32
    size = np.array(TRAIN["size"])
    assert np.allclose(x[:, 0], (size - 3) / size.std(), atol=1e-6)
    assert x[:, 1].tolist() == [1, -1, -1, 1]
    assert x[:, 2:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_constant_columns_are_left_out_with_a_note() -> None:
    encoder = Encoder.fit(table(TRAIN, word="w"), "price")
    assert encoder.notes == (
        "Column 'same' is always 7: left out.",
        "Column 'word' is always 'w': left out.",
    )


def test_regression_targets_come_back() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    y = encoder.targets(table(TRAIN))
    assert y.shape == (4, 1)
    assert y.mean().abs() < 1e-6
    back = encoder.target_mean + encoder.target_std * y.double().squeeze(1)
    assert torch.allclose(back, torch.tensor(TRAIN["price"], dtype=torch.float64), atol=1e-5)


def test_class_codes_follow_the_labels() -> None:
    encoder = Encoder.fit(table(TRAIN), "colour")
    assert encoder.classes == ("blue", "green", "red")
    codes = encoder.targets(table(TRAIN))
    assert codes.dtype == torch.int64
    assert [encoder.classes[code] for code in codes] == TRAIN["colour"]
    assert Encoder.fit(table(TRAIN), "old").classes == (False, True)
    tens = table(TRAIN, grade=[10, 9, 10, 2])
    assert Encoder.fit(tens, "grade", task="classification").classes == (2, 9, 10)


def test_moments_come_from_the_training_rows_only() -> None:
    whole = table(TRAIN)
    encoder = Encoder.fit(whole.rows([0, 1]), "price")
    assert encoder.target_mean == 15.0
    assert encoder.transform(whole.rows([0, 1]))[:, 0].tolist() == [-1.0, 1.0]
    with pytest.raises(DataError, match=r"'green' in row 3"):
        encoder.transform(whole)


def test_csv_type_changes_do_not_change_levels(tmp_path: Path) -> None:
    encoder = Encoder.fit(from_csv(tmp_path, "c,y\n1,1.5\n2,2.5\nx,3\n"), "y")
    later = from_csv(tmp_path, "c\n2\n1\n", "later.csv")
    assert later.frame["c"].dtype == np.int64
    assert encoder.transform(later).tolist() == [[0, 1, 0], [1, 0, 0]]
    fractions = Table.from_frame(pd.DataFrame({"c": [2.0, 1.0]}))
    assert encoder.transform(fractions).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("cell", ["", "NA", "nan", "inf", "-inf"])
def test_missing_feature_names_column_row_and_line(tmp_path: Path, cell: str) -> None:
    data = from_csv(tmp_path, f"x,z,y\n1,1,1.5\n\n{cell},2,2.5\n3,3,4\n")
    with pytest.raises(DataError, match=r"Column 'x' .*row 1 \(line 4\).*missing='impute'"):
        Encoder.fit(data, "y")
    with pytest.raises(DataError, match=r"Column 'x' .*row 1 \(line 4\).*delete these rows"):
        Encoder.fit(data, "x")
    encoder = Encoder.fit(data.rows([0, 2]), "y")
    with pytest.raises(DataError, match=r"Column 'x' .*row 1 \(line 4\)"):
        encoder.transform(data)


def test_imputed_values_are_filled_and_marked() -> None:
    columns = {
        "a": [1.0, np.nan, 3.0, 100.0],
        "b": ["u", "v", None, "v"],
        "c": [1.0, 2.0, 3.0, 5.0],
        "d": [np.nan] * 4,
        "y": [1.0, 2.0, 3.5, 4.0],
    }
    encoder = Encoder.fit(table(columns), "y", missing="impute")
    assert encoder.feature_names == ("a", "a is missing", "b=u", "b=v", "b is missing", "c")
    x = encoder.transform(table(columns))
    assert x[:, 1].tolist() == [0, 1, 0, 0]
    assert x[2, 2:5].tolist() == [0, 1, 1]
    assert x[1, 0] == x[2, 0]  # the median of 1, 3 and 100 is 3
    assert any("'d' has no values" in note for note in encoder.notes)
    assert any("'a': missing values are filled with the median 3" in n for n in encoder.notes)
    later = encoder.transform(table(columns, c=[np.inf, 2.0, 3.0, 5.0]))
    assert later[0, 5] == pytest.approx((2.5 - 2.75) / np.std([1, 2, 3, 5]), abs=1e-6)


def test_unseen_level_is_an_error_or_nothing() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    later = table(TRAIN, colour=["red", "pink", "blue", "pink"])
    with pytest.raises(DataError, match=r"'colour'.*'pink' in row 1, row 3.*Known: 'blue', 'gr"):
        encoder.transform(later)
    x = replace(encoder, unseen="ignore").transform(later)
    assert x[:, 2:].tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_other_columns_later() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    later = Table.from_frame(table(TRAIN).frame.rename(columns={"size": "Size"}))
    with pytest.raises(DataError, match=r"lacks 'size'.*Did you mean 'Size'"):
        encoder.transform(later)
    extra = table(TRAIN, more=1)
    assert torch.equal(encoder.transform(extra), encoder.transform(table(TRAIN)))
    assert encoder.notes_for(extra) == ("Not used: 'same', 'more'.",)
    without_target = Table.from_frame(table(TRAIN).frame.drop(columns="price"))
    assert encoder.transform(without_target).shape == (4, 5)


def test_text_among_numbers_is_named() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    with pytest.raises(
        DataError, match=r"'size' .*numbers in the training data but 'big' in row 2"
    ):
        encoder.transform(table(TRAIN, size=["1", "2", "big", "4"]))
    x = encoder.transform(table(TRAIN, size=["1", "2", "3", "6"]))
    assert torch.equal(x, encoder.transform(table(TRAIN)))


def test_unknown_class_later_is_named() -> None:
    encoder = Encoder.fit(table(TRAIN), "colour")
    with pytest.raises(DataError, match=r"class 'pink' in row 0.*Known: 'blue'"):
        encoder.targets(table(TRAIN, colour=["pink", "red", "red", "red"]))


@pytest.mark.parametrize(
    ("changes", "target", "options", "words"),
    [
        ({}, "prize", {}, "no column 'prize'. Did you mean 'price'"),
        ({}, None, {}, "does not say which column to predict"),
        ({"price": [1.0, 1.0, 1.0, 1.0]}, "price", {}, "always 1: there is nothing to learn"),
        ({"colour": ["red"] * 4}, "colour", {}, "one class only, 'red'"),
        ({}, "colour", {"task": "regression"}, "must be numbers for regression; got 'red'"),
        ({}, "price", {"task": "ranking"}, "No task 'ranking'"),
        ({}, "price", {"features": ["sise"]}, "Did you mean 'size'"),
        ({}, "price", {"features": ["price"]}, "is the target"),
        ({}, "price", {"features": ["size", "size"]}, "named twice"),
        ({}, "price", {"features": "size"}, r"Write \['size'\]"),
        ({"price": [1e308, -1e308, 0.0, 0.0]}, "price", {}, "Choose other units"),
        ({"price": [0.0, 5e-324, 0.0, 0.0]}, "price", {}, "Choose other units"),
        ({}, "price", {"features": []}, "no feature to learn from"),
        ({}, "price", {"features": ["same"]}, "always 7"),
        ({}, "price", {"missing": "drop"}, "take one of 'error', 'impute'"),
        ({}, "price", {"unseen": "drop"}, "take one of 'error', 'ignore'"),
        ({"size": pd.date_range("2020", periods=4)}, "price", {}, "'size' .*dates or times"),
        ({"size": ["2020-01-01"] * 4}, "price", {}, "dates or times.*leave it out with features="),
        ({"size": [[1]] * 4}, "price", {}, "neither numbers nor text"),
        ({"price": pd.date_range("2020", periods=4)}, "price", {}, "target 'price'.*dates"),
        ({"price": [1e-160, 2e-160, 0.0, 0.0]}, "price", {}, "Choose other units"),
    ],
)
def test_faults_of_fit(
    changes: dict[str, Any], target: str | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        Encoder.fit(table(TRAIN, **changes), target, **options)


def test_one_row_is_too_few() -> None:
    with pytest.raises(DataError, match="1 row; learning takes at least 2"):
        Encoder.fit(table(TRAIN).rows([0]), "price")


def test_many_levels_are_refused_by_name() -> None:
    n = 101
    many = Table.from_frame(pd.DataFrame({"id": [f"k{i}" for i in range(n)], "y": np.arange(n)}))
    with pytest.raises(DataError, match=r"'id' .*101 different values, such as 'k0'.*at most 100"):
        Encoder.fit(many, "y")
    with pytest.raises(DataError, match="too many for classes"):
        Encoder.fit(many, "id", features=["y"])
    assert len(Encoder.fit(many.rows(range(100)), "y").feature_names) == 100


def test_value_too_large_for_float32_is_named() -> None:
    encoder = Encoder.fit(table(TRAIN), "price")
    with pytest.raises(DataError, match=r"'size' .*too large to scale in row 3"):
        encoder.transform(table(TRAIN, size=[1.0, 2.0, 3.0, 1e300]))
    with pytest.raises(DataError, match=r"'price' .*too large to scale in row 0"):
        encoder.targets(table(TRAIN, price=[1e300, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize("target", ["price", "colour", "old"])
def test_json_round_trip_is_exact(target: str) -> None:
    encoder = Encoder.fit(table(TRAIN, size=[0.1, 0.7, 1 / 3, np.nan]), target, missing="impute")
    again = Encoder.from_json(encoder.to_json())
    assert again == encoder
    assert [type(label) for label in again.classes] == [type(label) for label in encoder.classes]
    assert torch.equal(again.transform(table(TRAIN)), encoder.transform(table(TRAIN)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=20).filter(lambda v: min(v) < max(v)),
    st.text(min_size=1),
)
def test_json_keeps_any_number_and_name(values: list[float], name: str) -> None:
    data = Table.from_frame(pd.DataFrame({name: values, name + "y": range(len(values))}))
    encoder = Encoder.fit(data, name + "y", task="regression")
    assert Encoder.from_json(encoder.to_json()) == encoder


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "task": 3}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a saved encoder"):
        Encoder.from_json(text)


def test_json_of_another_format_is_refused() -> None:
    content = json.loads(Encoder.fit(table(TRAIN), "price").to_json())
    with pytest.raises(DataError, match="format 2; format 1 is read"):
        Encoder.from_json(json.dumps({**content, "format": 2}))


@pytest.mark.data
def test_real_dates_are_refused(real_data: Path) -> None:
    data = read_table(real_data / "timeseries/ETTh1.csv.gz")
    with pytest.raises(DataError, match=r"Column 'date' .*2016-07-01"):
        Encoder.fit(data, "OT")
    co2 = read_table(real_data / "timeseries/mauna_loa_co2_weekly.csv")
    with pytest.raises(DataError, match=r"\(line \d+\).*59 rows in all"):
        Encoder.fit(co2, co2.columns[-1])
