"""Reading tables: what each format and each set gives, and what each fault says."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayesrule.app.data import EMBEDDED, DataError, Encoder, Table, embedded, open_table, read_table

SHAPES = {
    "diabetes": (442, 11),
    "breast_cancer": (569, 31),
    "wine": (178, 14),
    "iris": (150, 5),
    "digits": (1797, 65),
    "friedman": (2000, 6),
}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,name\n1,b\n2.5,c\n"),
        ("a.CSV", "x,name\r\n1,b\r\n2.5,c\r\n"),
        ("bom.csv", "\ufeffx,name\n1,b\n2.5,c\n"),
        ("spaces.csv", "x, name\n1, b\n2.5, c\n"),
        ("semicolon.csv", "x;name\n1;b\n2.5;c\n"),
        ("decimal_comma.csv", "x;name\n1;b\n2,5;c\n"),
        ("a.tsv", "x\tname\n1\tb\n2.5\tc\n"),
        ("a.csv.gz", gzip.compress(b"x,name\n1,b\n2.5,c\n", mtime=0)),
        ("a.tsv.gz", gzip.compress(b"x\tname\n1\tb\n2.5\tc\n", mtime=0)),
    ],
)
def test_delimited_text(tmp_path: Path, name: str, content: str | bytes) -> None:
    table = read_table(write(tmp_path, name, content))
    assert table.columns == ("x", "name")
    assert table.frame["x"].tolist() == [1.0, 2.5]
    assert table.frame["name"].tolist() == ["b", "c"]
    assert len(table) == 2


def test_rows_keep_their_number_and_line(tmp_path: Path) -> None:
    text = 'x,name\n\n1,"two\nlines"\n\n2,b\n3,c\n'
    table = read_table(write(tmp_path, "a.csv", text))
    assert table.where([0, 1, 2]) == "row 0 (line 3), row 1 (line 6), row 2 (line 7)"
    assert table.rows([2, 1]).where([0]) == "row 2 (line 7)"
    assert table.where([0, 1, 2], most=1) == "row 0 (line 3), ... (3 rows in all)"


def test_saved_row_numbers_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}).to_csv(path)
    table = read_table(path)
    assert table.columns == ("x", "y")
    assert "counts the rows" in table.notes[0]
    path.write_text("Unnamed Road,y\n0,1\n1,2\n")
    assert read_table(path).columns == ("Unnamed Road", "y")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\n \n", "is empty"),
        ("a.parquet", "", "is empty"),
        ("a.npz", "", "is empty"),
        ("a.csv", "x,y\n", "line of column names but no rows"),
        ("a.csv", "x,y,x\n1,2,3\n", "more than one column named 'x'"),
        ("a.csv", "x, x\n1,2\n", "more than one column named 'x'"),
        ("a.csv", "1.5,2\n3,4\n", "holds only numbers"),
        ("a.csv", "x,y\n1,2\n3,4,5\n", r"fields.*line 3"),
        ("a.csv", "x,y\n1,2,3\n4,5,6\n", "more fields than column names"),
        ("a.csv", b"x,y\n\xff\xfe,2\n", "not text in UTF-8"),
        ("a.csv", b"x,y\n\x00\x01,2\n", "binary file"),
        ("a.csv.gz", b"not gzip", "Cannot read"),
        ("a.parquet", b"PAR1 junk junk", "as parquet"),
        ("a.npz", b"junk", "as npz"),
        ("a.npz", b"PK\x03\x04junk", "as npz"),
        ("a.xlsx", b"junk", r"Known endings: \.csv, \.csv\.gz, \.tsv.*\.parquet, \.npz"),
        ("noending", b"junk", "Known endings"),
    ],
)
def test_faults_are_said(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_table(write(tmp_path, name, content))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "houses.csv", "x\n1\n")
    with pytest.raises(DataError, match=r"no file '.*house\.csv'\. Did you mean 'houses\.csv'"):
        read_table(tmp_path / "house.csv")
    with pytest.raises(DataError, match="There is no file"):
        read_table(tmp_path / "nowhere" / "house.csv")


def test_folder_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)


def test_parquet(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "c": pd.Categorical(["u", "v"])}, index=[5, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert table.columns == ("x", "c")
    assert table.frame["c"].tolist() == ["u", "v"]
    assert table.where([1]) == "row 1"


def test_parquet_without_rows(tmp_path: Path) -> None:
    pd.DataFrame({"x": []}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="0 rows and 1 columns"):
        read_table(tmp_path / "a.parquet")


def test_npz_with_inputs_and_targets(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([[1], [0], [1]])
    np.savez(tmp_path / "a.npz", X=x, y=y, train_0=np.arange(2))
    table = read_table(tmp_path / "a.npz")
    assert table.columns == ("x0", "x1", "y")
    assert table.target == "y"
    assert table.frame["x1"].tolist() == [1.0, 3.0, 5.0]
    assert "'train_0'" in table.notes[0]


def test_npz_with_one_array_per_column(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", size=np.arange(3), colour=np.array(["r", "g", "r"]))
    table = read_table(tmp_path / "a.npz")
    assert table.columns == ("size", "colour")
    assert table.frame["colour"].tolist() == ["r", "g", "r"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.array([{}, []], dtype=object)}, "'a'.*Python objects"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(4)}, "differ in length: 'x0' 3"),
        ({"X": np.zeros((3, 2, 2)), "y": np.zeros(3)}, r"shape \(3, 2, 2\)"),
        ({"X_train": np.zeros((3, 2)), "y_train": np.zeros(3)}, "does not fit 'X_train'"),
        ({"a": np.zeros(2, dtype=complex)}, "complex128, not a column"),
        ({"a": np.zeros(0)}, "0 rows"),
    ],
)
def test_npz_faults(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "a.npz")


def test_damaged_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).normal(size=500))
    raw = bytearray(path.read_bytes())
    raw[1000:1100] = bytes(100)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"'a' in .* is damaged"):
        read_table(path)


def test_single_array_is_not_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DataError, match="single npy array"):
        read_table(tmp_path / "a.npz")


def test_missing_package_names_the_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DataError, match=r"needs the package 'pandas'.*bayesrule\[front\]"):
        read_table(write(tmp_path, "a.csv", "x\n1\n"))


def test_frame_with_repeated_names_is_refused() -> None:
    with pytest.raises(DataError, match="more than one column named 'a'"):
        Table.from_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_open_table_reads_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "iris.csv", "x\n1\n2\n")
    monkeypatch.chdir(tmp_path)
    assert open_table("iris.csv").columns == ("x",)
    (tmp_path / "iris").mkdir()
    assert open_table("iris").target == "species"
    with pytest.raises(DataError, match=r"no file 'irs\.csv'"):
        open_table("irs.csv")


@pytest.mark.data
def test_real_files(real_data: Path) -> None:
    hourly = read_table(real_data / "timeseries/ETTh1.csv.gz")
    assert hourly.frame.shape == (17_420, 8)
    mushroom = read_table(real_data / "bandit/mushroom.npz")
    assert mushroom.frame.shape == (8124, 118)
    assert mushroom.frame["y"].sum() == 3916


@pytest.mark.parametrize("name", EMBEDDED)
def test_each_set_loads_and_knows_its_target(name: str) -> None:
    table = embedded(name)
    assert table.frame.shape == SHAPES[name]
    assert table.target == EMBEDDED[name]
    encoder = Encoder.fit(table)
    kind = "regression" if name in ("diabetes", "friedman") else "classification"
    assert encoder.task.kind == kind
    x, y = encoder.transform(table), encoder.targets(table)
    assert x.isfinite().all()
    assert len(x) == len(y) == SHAPES[name][0]


def test_default_is_diabetes_in_its_own_units() -> None:
    table = open_table()
    assert table.name == "diabetes"
    assert table.frame["age"].between(19, 79).all()
    assert table.frame["progression"].between(25, 346).all()


def test_class_names_are_words() -> None:
    assert set(embedded("iris").frame["species"]) == {"setosa", "versicolor", "virginica"}
    assert embedded("breast_cancer").frame["diagnosis"].value_counts()["benign"] == 357


def test_wine_is_scikit_learns() -> None:
    assert open_table("wine").target == "cultivar"


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(DataError, match=r"'diabets'.*Did you mean 'diabetes'.*'iris'"):
        open_table("diabets")
    with pytest.raises(DataError, match="Did you mean 'digits'"):
        embedded("digit")


def test_the_name_of_a_benchmark_set_gets_the_way_to_a_file() -> None:
    with pytest.raises(DataError, match=r"python -m benchmarks table yacht --out yacht\.csv$"):
        open_table("yacht")
