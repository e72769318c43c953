"""Generated tables: a table or a DataError, the same meaning row by row, targets that come back."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bayesrule.app.data import DataError, Encoder, Table, read_table

CODES = st.sampled_from(
    ["1", "01", "1.0", "+1", "007", "x", "True", "1e0", "", "NA", "?", "5%", "8,65"]
)
NUMBERS = st.floats(-1e12, 1e12).map(repr) | st.integers(-(10**17), 10**17).map(str)
COMMAS = st.integers(0, 99999).map(lambda n: f"{n // 1000},{n % 1000:03d}")
WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=5)
CELLS = (CODES, NUMBERS, COMMAS, WORDS, CODES | NUMBERS, NUMBERS | WORDS, NUMBERS | COMMAS)
MANY = settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def columns(draw: st.DrawFn) -> list[list[str]]:
    """Columns of cells of different kinds, as a file may hold them."""
    rows = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(CELLS), min_size=2, max_size=4))
    return [draw(st.lists(kind, min_size=rows, max_size=rows)) for kind in kinds]


def write(
    path: Path, cells: list[list[str]], separator: str, rows: list[int] | None = None
) -> Path:
    """The columns a, b, ... as a file, or some of its rows, each with a name of its own."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=separator, quoting=csv.QUOTE_ALL)
        writer.writerow(["row", *"abcd"[: len(cells)]])
        every = list(enumerate(zip(*cells, strict=True)))
        writer.writerows(
            [f"r{i}", *every[i][1]] for i in (range(len(every)) if rows is None else rows)
        )
    return path


@MANY
@given(columns(), st.sampled_from(",;\t|"), st.data())
def test_rows_mean_the_same_alone(
    cells: list[list[str]], separator: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = read_table(write(Path(folder, "a.csv"), cells, separator))
        rows = sorted(data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1)))
        some = read_table(write(Path(folder, "b.csv"), cells, separator, rows))
    features, missing = (
        list("abcd"[1 : len(cells)]),
        data.draw(st.sampled_from(["error", "impute"])),
    )
    assert [whole.rows(rows).as_written(n) for n in "ab"] == [some.as_written(n) for n in "ab"]
    try:
        encoder = Encoder.fit(whole, "a", features=features, missing=missing)
    except DataError:
        return
    assert torch.equal(encoder.transform(some), encoder.transform(whole.rows(rows)))
    assert torch.equal(encoder.original_targets(some), encoder.original_targets(whole.rows(rows)))


@settings(max_examples=120)
@given(
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    st.sampled_from(["csv", "tsv", "npz", "csv.gz", "parquet"]),
)
def test_any_bytes_are_a_table_or_a_data_error(raw: bytes, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.{ending}")
        path.write_bytes(raw)
        try:
            table = read_table(path)
            Encoder.fit(table, table.columns[-1], missing="impute").tensors(table)
        except DataError as error:
            str(error).encode()  # can be printed


@settings(max_examples=100)
@given(st.lists(st.integers(-(2**52), 2**52), min_size=2, max_size=10), st.integers(0, 6))
def test_targets_come_back(values: list[int], digits: int) -> None:
    targets = [value / 10**digits for value in values]
    assume(min(targets) < max(targets))
    table = Table.from_frame(pd.DataFrame({"x": range(len(targets)), "y": targets}))
    encoder = Encoder.from_json(Encoder.fit(table, "y", task="regression").to_json())
    assert encoder.original_targets(table).flatten().tolist() == targets
    scaled = encoder.targets(table).double().flatten() * encoder.target_std + encoder.target_mean
    worst = (scaled - torch.tensor(targets, dtype=torch.float64)).abs().max()
    assert worst <= 1e-6 * (max(targets) - min(targets))
    classes = Encoder.fit(table, "y", task="classification")
    names = [classes.labels[code] for code in classes.targets(table)]
    assert len(set(names)) == len(set(targets))
    assert replace(classes, unseen="ignore").labels == classes.labels
