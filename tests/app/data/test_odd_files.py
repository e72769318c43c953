"""Files that are damaged, unusual or hard to name: each gives a table or a sentence."""

from __future__ import annotations

import gzip
import io
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesrule.app.data import DataError, Encoder, open_table, read_table

Y = np.array([1.5, 2.5, 4.0])


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(folder: Path, **members: bytes) -> Path:
    path = folder / "a.npz"
    with zipfile.ZipFile(path, "w") as content:
        for name, raw in {**members, "y": npy(Y)}.items():
            content.writestr(f"{name}.npy", raw)
    return path


# parquet


def parquet(folder: Path, **columns: Any) -> Path:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(
        pyarrow.table({**columns, "z": [1.0, 2.0, 4.0], "y": Y}), folder / "a.parquet"
    )
    return folder / "a.parquet"


def test_parquet_columns_that_cannot_be_encoded_are_refused_only_where_used(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {
        "lists": [[1, 2], [3], []],
        "tables": [{"a": 1}] * 3,
        "mars": pyarrow.array([1, 2, 3], pyarrow.timestamp("us", tz="Mars/Base")),
        "early": pyarrow.array([-(10**17), 0, 1], pyarrow.timestamp("us")),
        "days": pyarrow.array([-800_000, 1, 2], pyarrow.date32()),
        "bytes": [b"\xff", b"a", b"b"],
    }
    table = read_table(parquet(tmp_path, **columns))
    assert Encoder.fit(table, "y", features=["z"]).feature_names == ("z",)
    with pytest.raises(DataError, match="6 faults") as caught:
        Encoder.fit(table, "y")
    for name in columns:
        assert f"Column '{name}'" in str(caught.value)
    for name in columns:
        with pytest.raises(DataError, match=f"The target '{name}' .* holds"):
            Encoder.fit(table, name, features=["z"])


def test_numbers_of_parquet_keep_their_digits(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    money = pyarrow.array([10**8 - 1, 10**8, 10**8 + 1], pyarrow.decimal128(20, 2))
    table = read_table(parquet(tmp_path, money=money))
    encoder = Encoder.fit(table, "money")
    assert encoder.original_targets(table).flatten().tolist() == [1e8 - 1, 1e8, 1e8 + 1]


# npz


def test_whole_numbers_of_parquet_stay_whole_beside_missing_ones(tmp_path: Path) -> None:
    table = read_table(parquet(tmp_path, id=[2**53 + 1, None, 2**53]))
    assert table.as_written("id") == [2**53 + 1, None, 2**53]
    encoder = Encoder.fit(table, "y", categories=["id"], missing="impute")
    assert encoder.feature_names[:2] == ("id=9007199254740992", "id=9007199254740993")
    assert Encoder.fit(table, "y", missing="impute").feature_names[0] == "id"


def test_only_the_row_names_of_pandas_are_left_out(tmp_path: Path) -> None:
    columns = {"__index_level_0__": [0, 1, 2], "__index_level_of_water": [0, 1, 2]}
    assert read_table(parquet(tmp_path, **columns)).columns == ("__index_level_of_water", "z", "y")


def test_npz_of_longer_floats(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([1.0, 2.0, 1.0], dtype=np.longdouble), y=Y)
    table = read_table(tmp_path / "a.npz")
    assert table.as_written("x") == [1.0, 2.0, 1.0]
    assert Encoder.fit(table, "x", task="classification").classes == (1.0, 2.0)


def test_npz_of_the_other_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([1, 2, 4], ">f8"), k=np.array(["a", "b", "a"], ">U1"), y=Y)
    table = read_table(path)
    assert table.frame["x"].tolist() == [1.0, 2.0, 4.0]
    assert Encoder.fit(table.rows([0, 1, 2]), "y").feature_names == ("x", "k=a", "k=b")


def test_npz_text_that_is_not_utf8(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", k=np.array([b"\xff", b"a", b"b"]), y=Y)
    with pytest.raises(DataError, match=r"'k' .*not text in UTF-8, such as b'\\xff'"):
        read_table(tmp_path / "a.npz")


def broken_header() -> bytes:
    return npy(Y).replace(b"(3,)", b"(3, ")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "'x' .* is empty"),
        (b"hello", "'x' .*not an array"),
        (npy(np.arange(99.0))[:200], "'x' .*damaged"),
        (npy(Y)[:20], "'x' .*damaged"),
        (broken_header(), "'x' .*damaged"),
        (npy(Y).replace(b"(3,), }            ", b"(300000000000000,)}"), "'x' .*(memory|damaged)"),
        (
            npy(np.array([{}, None], dtype=object)),
            "Python objects",
        ),
    ],
)
def test_npz_members_are_named_with_the_right_reason(
    tmp_path: Path, raw: bytes, words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_table(archive(tmp_path, x=raw))
    assert ("Python objects" in str(caught.value)) == (words == "Python objects")


def test_all_damaged_members_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 faults(.|\n)*'u'(.|\n)*'v'"):
        read_table(archive(tmp_path, u=b"", v=npy(Y)[:30]))


def test_encrypted_npz(tmp_path: Path) -> None:
    path = archive(tmp_path, x=npy(Y))
    raw = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = raw.find(mark)
        while place >= 0:
            raw[place + flags] |= 1
            place = raw.find(mark, place + 1)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"cannot be unpacked: .*(encrypted|password)"):
        read_table(path)


# csv


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_numbers_of_many_digits(tmp_path: Path, digits: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"x,y\n{'9' * digits},1.5\n2,2.5\n3,3.5\n")
    table = read_table(path)
    encoder = Encoder.fit(table, "y")
    assert "more than 18 digits" in encoder.notes[0]
    assert len(encoder.notes[0]) < 300
    numbers = Encoder.fit(table.rows([1, 2]), "y", features=["x"])
    assert numbers.feature_names == ("x=2", "x=3")
    path.write_text("x,y\n1,1.5\n2,2.5\n3,3.5\n")
    numbers = Encoder.fit(read_table(path), "y")
    with pytest.raises(DataError, match="more than 18 digits"):
        numbers.transform(table)


@pytest.mark.parametrize("name", ["x\x01", "\x1bx", "x\x7fy", "\x9bx"])
def test_control_characters_in_the_header(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text(f"{name},{name},y\n1,2,3\n", encoding="utf-8")
    with pytest.raises(DataError, match="control characters") as caught:
        read_table(tmp_path / "a.csv")
    said = str(caught.value)
    assert "more than one column" in said
    assert said.replace("\n", " ").isprintable()


def test_all_long_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,2\n3,4,5\n"a\nb",1\n6,7,8,9\n')
    with pytest.raises(DataError, match=r"line 3 \(3 fields\), line 6 \(4 fields\)\. Put values"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("header", "separator", "names"),
    [
        ('mean;"a|b;c|d"', ";", ("mean", "a|b;c|d")),
        ('"line\nend";y', ";", ("line\nend", "y")),
        ('"a;b;c;d",y', ",", ("a;b;c;d", "y")),
        ("a,b|y", "|", ("a,b", "y")),
        ('5" pipe;y', ";", ('5" pipe', "y")),
    ],
)
def test_separators_within_names(
    header: str, separator: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    rows = "".join(f"{i}{separator}{i}.5\n" for i in range(3))
    (tmp_path / "a.csv").write_text(f"{header}\n{rows}")
    table = read_table(tmp_path / "a.csv")
    assert table.columns == names
    assert table.frame[names[1]].tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("content", "line"), [("x\n1\n\n3\n", 3), ("\nx\n1\n2\n \n3\n", 5), ("x\n\n1\n", 2)]
)
def test_a_blank_line_in_a_single_column_is_refused(
    content: str, line: int, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=f"line {line} is blank: a missing value, or nothing"):
        read_table(tmp_path / "a.csv")


def test_an_empty_cell_in_quotes_is_a_row_of_a_single_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\nx\n1\n""\n3\n\n')
    assert len(read_table(tmp_path / "a.csv")) == 3


def test_lines_and_cells_longer_than_a_field_of_csv(tmp_path: Path) -> None:
    """The longest field of Python's csv module has 131,072 characters; pandas has no such limit."""
    wide = [",".join(f"c{i}" for i in range(20_000)), ",".join("0.123456" for _ in range(20_000))]
    (tmp_path / "wide.csv").write_text("\n".join(wide) + "\n")
    assert len(read_table(tmp_path / "wide.csv").columns) == 20_000
    for row in ("x" * 200_000, "x" * 200_000 + ",1"):
        header = "a,b" if "," in row else "a"
        (tmp_path / "long.csv").write_text(f"{header}\n{row}\n")
        assert read_table(tmp_path / "long.csv").frame["a"].tolist() == ["x" * 200_000]
    (tmp_path / "a.tsv").write_text(",,\n,\n\n1\n")
    with pytest.raises(DataError, match="line 3 is blank"):
        read_table(tmp_path / "a.tsv")


def test_an_unclosed_quote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,2\n"3,4\n5,6\n')
    with pytest.raises(DataError, match=r"Cannot read .* as a table"):
        read_table(tmp_path / "a.csv")


# Names and places


def test_endings_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(b"x,y\n1,2.5\n"))
    assert read_table(tmp_path / "A.CSV.GZ").columns == ("x", "y")


def test_names_of_files_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")
    try:
        Path(path).write_text("x,y\n1,2.5\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    table = read_table(path)
    assert table.name.encode().endswith(b"caf\\udce9.csv")
    with pytest.raises(
        DataError, match=r"caf\\udcea\.csv'\. Did you mean 'caf\\udce9\.csv'"
    ) as caught:
        read_table(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xea.csv"))
    assert str(caught.value).encode()


def test_the_home_of_nobody() -> None:
    with pytest.raises(DataError, match=r"no file '~nosuchuser/a\.csv'"):
        read_table("~nosuchuser/a.csv")
    with pytest.raises(DataError, match="neither a file nor"):
        open_table("~nosuchuser")


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> Any:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(DataError, match=r"no file '~/a\.csv'"):
        read_table("~/a.csv")


def test_links_to_nothing_and_things_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "dangling.csv").symlink_to("gone.csv")
    with pytest.raises(
        DataError, match=r"is a link to 'gone\.csv', which does not exist"
    ) as caught:
        read_table(tmp_path / "dangling.csv")
    assert "Did you mean" not in str(caught.value)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="a pipe or a device"):
        open_table(str(tmp_path / "pipe.csv"))
    for name in ("a" * 300 + ".csv", "a\0b.csv"):
        with pytest.raises(DataError):
            open_table(name)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "npz", "parquet"])
def test_files_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"x,y\n1,2\n")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    for place in ("builtins.open", "gzip.open", "pathlib.Path.open", "pyarrow.parquet.ParquetFile"):
        monkeypatch.setattr(place, refuse)
    with pytest.raises(DataError, match=rf"Cannot read '{path}'.*: Permission denied\.$") as caught:
        read_table(path)
    assert "Delete" not in str(caught.value)


# Size


def test_five_thousand_columns(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(60, 5000)).round(3)
    pd.DataFrame(values, columns=[f"c{i}" for i in range(5000)]).to_csv(
        tmp_path / "a.csv", index=False
    )
    begun = time.process_time()
    table = read_table(tmp_path / "a.csv")
    encoder = Encoder.fit(table, "c0")
    assert encoder.transform(table).shape == (60, 4999)
    assert time.process_time() - begun < 2.0
