"""What a cell means does not depend on the other rows, nor on how many digits it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from bayesrule.app.data import DataError, Encoder, Table, read_table
from bayesrule.likelihoods._targets import NormalTargets
from bayesrule.predicting.prediction import Prediction


def csv(folder: Path, *rows: str, name: str = "t.csv") -> Table:
    (folder / name).write_text("\n".join(rows) + "\n")
    return read_table(folder / name)


# Categories and classes


def test_codes_mean_the_same_without_the_other_rows(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "c,y", "1,1.5", "01,2.5", "x,3.5", "1.0,4.5"), "y")
    assert encoder.feature_names == ("c=01", "c=1", "c=1.0", "c=x")
    for place, cell in enumerate(("01", "1", "1.0", "x")):
        alone = encoder.transform(csv(tmp_path, "c", cell, name="later.csv"))
        assert alone.tolist() == [[float(place == i) for i in range(4)]]
    with pytest.raises(DataError, match=r"has the value '007' in row 0"):
        encoder.transform(csv(tmp_path, "c", "007", name="later.csv"))


def test_codes_are_known_where_unseen_ones_are_ignored(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "c,y", "007,1.5", "1.0,2.5", "x,3.5"), "y")
    lenient = replace(encoder, unseen="ignore")
    assert lenient.transform(csv(tmp_path, "c", "007", name="a.csv")).tolist() == [[1, 0, 0]]
    assert lenient.transform(csv(tmp_path, "c", "1.0", name="b.csv")).tolist() == [[0, 1, 0]]


def test_class_labels_mean_the_same_without_the_other_rows(tmp_path: Path) -> None:
    table = csv(tmp_path, "x,c", "1,1", "2,01", "3,x", "4,1.50")
    encoder = Encoder.fit(table, "c", task="classification")
    assert encoder.classes == ("01", "1", "1.50", "x")
    for code, label in enumerate(encoder.classes):
        later = csv(tmp_path, "x,c", f"1,{label}", name="later.csv")
        assert encoder.targets(later).tolist() == [code]


def test_zip_codes_stay_codes(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "zip,y", "0215,1.5", "2150,2.5", "0999,3.5"), "y")
    assert encoder.feature_names == ("zip=0215", "zip=0999", "zip=2150")
    (note,) = encoder.notes
    assert "Column 'zip' is taken for categories" in note
    assert "'0215' in row 0 (line 2): leading zero" in note


def test_numbers_can_be_named_categories(tmp_path: Path) -> None:
    table = csv(tmp_path, "zip,y", "10115,1.5", "10117,2.5", "10115.0,3.5")
    encoder = Encoder.fit(table, "y", categories=["zip"])
    assert encoder.feature_names == ("zip=10115", "zip=10115.0", "zip=10117")
    with pytest.raises(DataError, match=r"no column 'zap'\. Did you mean 'zip'"):
        Encoder.fit(table, "y", categories=["zap"])


def test_codes_among_numbers_later_are_refused(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "x,y", "1,1.5", "2,2.5"), "y")
    with pytest.raises(DataError, match=r"but '0215' in row 0 \(line 2\): leading zero"):
        encoder.transform(csv(tmp_path, "x", "0215", name="later.csv"))


def test_truth_values_are_not_numbers_in_a_column_of_numbers(tmp_path: Path) -> None:
    prices = Encoder.fit(csv(tmp_path, "x,y", "1,1.5", "2,2.5"), "y")
    for rows in (["True"], ["True", "3"]):
        with pytest.raises(DataError, match=r"but 'True' in row 0"):
            prices.transform(csv(tmp_path, "x", *rows, name="later.csv"))
    flags = Encoder.fit(csv(tmp_path, "x,y", "True,1.5", "false,2.5"), "y")
    assert flags.transform(csv(tmp_path, "x", "TRUE", name="later.csv")).tolist() == [[1.0]]


def test_long_numbers_are_told_apart_as_classes(tmp_path: Path) -> None:
    long = 9007199254740993  # 2⁵³ + 1: as a float it would be the one before
    table = csv(tmp_path, "x,c", f"1,{long}", f"2,{long - 1}", f"3,{long}")
    encoder = Encoder.fit(table, "c", task="classification")
    assert encoder.classes == (long - 1, long)
    assert encoder.targets(table).tolist() == [1, 0, 1]


def test_long_numbers_are_told_apart_as_classes_among_fractions(tmp_path: Path) -> None:
    rows = ("x,y", "1,97642017591855032", "2,97642017591855033", "3,0.5")
    encoder = Encoder.fit(csv(tmp_path, *rows), "y", task="classification")
    assert encoder.classes == (0.5, 97642017591855032, 97642017591855033)
    alone = csv(tmp_path, rows[0], rows[2], name="later.csv")
    assert encoder.original_targets(alone).tolist() == [2]


def test_classes_that_look_like_something_else_alone(tmp_path: Path) -> None:
    cells = ("red", "inf", "2020-01-31", "True", "1")
    rows = [f"{i},{cell}" for i, cell in enumerate(cells)]
    encoder = Encoder.fit(csv(tmp_path, "x,y", *rows), "y")
    for row, cell in zip(rows, cells, strict=True):
        code = encoder.original_targets(csv(tmp_path, "x,y", row, name="later.csv"))
        assert encoder.classes[int(code)] == cell
    with pytest.raises(DataError, match="It is the target"):
        encoder.original_targets(csv(tmp_path, "x,y", "1,NA", name="later.csv"))


def test_infinite_targets_of_later_rows_are_named(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "x,y", "1,1.5", "2,2.5", "3,4"), "y")
    with pytest.raises(DataError, match="no finite value in row 0"):
        encoder.original_targets(csv(tmp_path, "x,y", "1,inf", name="later.csv"))


def test_float_classes_have_labels_of_their_own(tmp_path: Path) -> None:
    table = csv(tmp_path, "x,c", "1,1000000.1", "2,1000000.2", "3,7.0")
    encoder = Encoder.fit(table, "c", task="classification")
    assert encoder.labels == ("7", "1000000.1", "1000000.2")
    assert Encoder.from_json(encoder.to_json()).labels == encoder.labels


def test_cells_are_kept_as_they_are_written(tmp_path: Path) -> None:
    table = csv(tmp_path, "id,x,word", "007,1.50,NA", "12,2,b")
    assert [table.as_written(name) for name in table.columns] == [
        ["007", "12"],
        ["1.50", "2"],
        ["NA", "b"],
    ]
    assert table.rows([1]).as_written("x") == ["2"]
    assert table.without(["x"]).columns == ("id", "word")
    frame = Table.from_frame(pd.DataFrame({"x": [1.5, None], "d": pd.to_datetime(["2020"] * 2)}))
    assert frame.as_written("x") == [1.5, None]
    assert frame.as_written("d") == ["2020-01-01 00:00:00"] * 2


# Digits


@pytest.mark.parametrize("values", [[1e8 - 1, 1e8, 1e8 + 1], [1.7e9, 1.7e9 + 60, 1.7e9 + 3600]])
def test_targets_far_from_zero_come_back(tmp_path: Path, values: list[float]) -> None:
    table = csv(tmp_path, "x,y", *(f"{i},{y:.2f}" for i, y in enumerate(values)))
    encoder = Encoder.fit(table, "y")
    assert encoder.original_targets(table).flatten().tolist() == values
    y = encoder.targets(table)
    assert y.dtype == torch.float32
    zero = torch.zeros(1, 3, 1)
    said = encoder.original(Prediction.mixture(NormalTargets(y[None], zero + 1e-3)))
    assert said.mean.dtype == torch.float64
    spread = max(values) - min(values)
    wanted = torch.tensor(values, dtype=torch.float64)
    assert (said.mean.flatten() - wanted).abs().max() < 1e-6 * spread
    lower, upper = said.interval(0.9)
    assert (lower < said.mean).all()
    assert (said.mean < upper).all()
    assert ((upper - lower) < 0.01 * spread).all()


# Slips


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("?", "a placeholder"),
        ("5%", "a percent sign"),
        ("$5", r"the sign '\$'"),
        ("1,234", "may be 1.234 or 1234"),
        ("−5", "a minus other than"),
        ("(5)", r"the sign '\('"),
    ],
)
@pytest.mark.parametrize("target", ["x", "y"])
def test_one_slip_in_a_column_of_numbers_is_named(
    tmp_path: Path, cell: str, reason: str, target: str
) -> None:
    table = csv(tmp_path, "x,y,z", "1,1.5,1", f'"{cell}","{cell}",2', "3,3.5,4", "4,4.5,4")
    with pytest.raises(DataError, match=rf"'{target}' .*row 1 \(line 3\): {reason}.*categories="):
        Encoder.fit(table, target, features=["z"]) if target == "y" else Encoder.fit(
            table, "z", features=["x"]
        )
    asked = Encoder.fit(table, "z", features=["x"], categories=["x"])
    assert f"x={cell}" in asked.feature_names


@pytest.mark.parametrize("cells", [["5%", "7%", "8%"], ["$1", "$2", "$3"], ["1,000", "2,000", "3"]])
def test_columns_of_slips_are_refused(tmp_path: Path, cells: list[str]) -> None:
    table = csv(tmp_path, "x,y", *(f'"{cell}",{i}.5' for i, cell in enumerate(cells)))
    with pytest.raises(DataError, match="not certainly numbers"):
        Encoder.fit(table, "y")


def test_text_among_many_numbers_is_refused_and_among_few_is_told(tmp_path: Path) -> None:
    many = csv(tmp_path, "x,y", *(f"{'oops' if i == 7 else i * 1.5},{i}.25" for i in range(60)))
    with pytest.raises(DataError, match=r"'x' .*because of 'oops' in row 7 \(line 9\): text"):
        Encoder.fit(many, "y")
    doors = csv(tmp_path, "doors,y", *(f"{cell},{i}.5" for i, cell in enumerate("234n" * 5)))
    encoder = Encoder.fit(doors, "y")
    assert encoder.feature_names == ("doors=2", "doors=3", "doors=4", "doors=n")
    assert "'n' in row 3 (line 5), row 7 (line 9)" in encoder.notes[0]
    names = csv(
        tmp_path,
        "book,y",
        *(f"{cell},{i}.5" for i, cell in enumerate(["Emma", "?", "1984", "Ulysses", "Dune"])),
    )
    assert Encoder.fit(names, "y").notes == ()


# Decimal commas


def test_decimal_commas_are_certain_or_refused(tmp_path: Path) -> None:
    certain = csv(tmp_path, "x;y", "8,650;1", "2,5;2", "3;3")
    assert certain.frame["x"].tolist() == [8.65, 2.5, 3.0]
    for rows in (["8,650;1", "9,100;2"], ["8,650;1", "1,234,567;2"]):
        doubtful = csv(tmp_path, "x;y", *rows, "3;3.5")
        with pytest.raises(DataError, match=r"'8,650' in row 0 \(line 2\): may be 8\.650 or 8650"):
            Encoder.fit(doubtful, "y")
    both = csv(tmp_path, "x;y", "2,5;1.5", "8,650;2.5", "3,5;3.5")
    with pytest.raises(DataError, match=r"'2,5' in row 0 \(line 2\): a comma"):
        Encoder.fit(both, "y")
    points = csv(tmp_path, "x;y;z", "2,5;1.234,5;1", "8,6;2,5;2", "3,5;1;4")
    with pytest.raises(DataError, match=r"Column 'y' .*'1\.234,5' in row 0"):
        Encoder.fit(points, "z")


def test_later_files_are_read_with_the_decimal_mark_of_training(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "x;y", "8,650;1", "2,5;2", "3;3"), "x")
    later = csv(tmp_path, "x;y", "8,650;1", name="later.csv")
    assert encoder.original_targets(later).tolist() == [[8.65]]
    again = Encoder.from_json(encoder.to_json())
    assert again.original_targets(later).tolist() == [[8.65]]
    points = csv(tmp_path, "x;y", "8.650;1", name="points.csv")
    assert encoder.original_targets(points).tolist() == [[8.65]]


# All faults at once


def test_all_faults_of_a_table_come_in_one_answer(tmp_path: Path) -> None:
    table = csv(tmp_path, "a,b,day,y", "1,?,2020-01-01,1.5", ",2,2020-01-02,", "3,3,2020-01-03,3")
    with pytest.raises(DataError) as caught:
        Encoder.fit(table, "y")
    said = str(caught.value)
    assert said.startswith("There are 4 faults.")
    for words in ("(1) Column 'y'", "(2) Column 'a'", "(3) Column 'b'", "(4) Column 'day'"):
        assert words in said
    wide = Table.from_frame(
        pd.DataFrame({f"c{i}": [1.0, None, 2.0] for i in range(30)} | {"y": [1, 2, 4]})
    )
    with pytest.raises(DataError, match=r"30 faults(.|\n)*\.\.\. and 20 more"):
        Encoder.fit(wide, "y")


def test_all_faults_of_later_rows_come_in_one_answer(tmp_path: Path) -> None:
    encoder = Encoder.fit(csv(tmp_path, "a,b,y", "1,u,1.5", "2,v,2.5", "3,u,4"), "y")
    later = csv(tmp_path, "a,b", "x,u", "5,w", name="later.csv")
    with pytest.raises(
        DataError, match=r"2 faults\.\n\(1\) Column 'a'.*'x' in row 0.*\n\(2\).*'w' in row 1"
    ):
        encoder.transform(later)


# Models of the version before


def test_saved_encoders_of_the_version_before_are_read(tmp_path: Path) -> None:
    old = '{"kind": "NumberColumn", "name": "x", "mean": 1.5, "std": 0.5, "median": 1.5}'
    text = (
        '{"format": 1, "target": "y", "task": {"kind": "classification", "reason": ""}, '
        '"columns": [COLUMN], "target_mean": 0.0, "target_std": 1.0, "classes": [1, 2], '
        '"missing": "error", "unseen": "error", "notes": []}'
    )
    encoder = Encoder.from_json(text.replace("COLUMN", old))
    later = csv(tmp_path, "x,y", "1,2", "2,1.0")
    assert encoder.transform(later).tolist() == [[-1.0], [1.0]]
    assert encoder.targets(later).tolist() == [1, 0]
