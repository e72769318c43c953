"""The UCI sets: real content, standard splits, and the download that assembles them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import bench, only_line

from bayesrule.app.data import DataError, Encoder, read_table
from benchmarks.data import UCI, uci, uci_table
from benchmarks.data.uci import content_sum, uci_arrays, uci_set

module = sys.modules["benchmarks.data.uci"]


@pytest.mark.data
@pytest.mark.parametrize("name", UCI)
def test_every_split_partitions_the_real_rows(name: str, real_data: Path) -> None:
    entry = UCI[name]
    x, y = uci_arrays(name)
    assert x.shape == (entry.rows, entry.features)
    for split in (0, entry.n_splits - 1):
        part = uci(name, split)
        # Every split is a permutation of the rows, so sums over both parts are those of the whole.
        assert len(part.y_train) + len(part.y_test) == entry.rows
        assert len(part.y_test) == round(0.1 * entry.rows)
        everything = np.concatenate([part.y_train, part.y_test])
        assert np.array_equal(np.sort(everything), np.sort(y))


@pytest.mark.data
def test_first_boston_split_is_the_published_one(real_data: Path) -> None:
    part = uci("boston")
    assert part.x_train.shape == (455, 13)
    assert part.x_test.shape == (51, 13)
    x, y = uci_arrays("boston")
    assert np.array_equal(part.x_train[0], x[307])
    assert y.mean() == pytest.approx(22.5328, abs=1e-4)
    assert y.std() == pytest.approx(9.1880, abs=1e-4)


@pytest.mark.data
def test_real_naval_has_two_constant_columns(real_data: Path) -> None:
    data = uci_table("naval")
    encoder = Encoder.fit(data)
    assert len(encoder.notes) == 2
    assert encoder.task.kind == "regression"
    x = encoder.transform(data).double()
    assert x.shape == (11934, 14)
    assert x.mean(0).abs().max() < 1e-5
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-5
    assert uci("naval").x_train.shape[1] == 16


@pytest.mark.data
def test_real_sets_are_tables(real_data: Path) -> None:
    assert uci_table("yacht").frame.shape == (308, 7)
    assert uci_table("wine").target == "y"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("wine", "wine_red"),
        ("Wine-Red", "wine_red"),
        ("bostonHousing", "boston"),
        ("power plant", "power"),
        ("KIN8NM", "kin8nm"),
    ],
)
def test_other_spellings(spelling: str, name: str) -> None:
    assert uci_set(spelling).name == name


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match=r"No UCI set 'concret'\. Did you mean 'concrete'\?"):
        uci("concret")


@pytest.mark.parametrize(("name", "split"), [("protein", 5), ("yacht", 20), ("yacht", -1)])
def test_split_out_of_range(name: str, split: int) -> None:
    with pytest.raises(DataError, match=rf"'{name}' has splits 0 to .*; got {split}"):
        uci(name, split)


def small_set(site: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray[Any, Any]]:
    """Serve a set of six rows and two splits in the published layout under the name yacht."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(6, 4))
    arrays = {"X": table[:, [0, 1, 2]], "y": table[:, 3]}
    base = "yacht/data"
    site.files[f"{base}/data.txt"] = "\n".join(
        " ".join(map(repr, r.tolist())) for r in table
    ).encode()
    site.files[f"{base}/index_features.txt"] = b"0\n1\n2\n"
    site.files[f"{base}/index_target.txt"] = b"3\n"
    for k in range(2):
        order = rng.permutation(6)
        arrays |= {f"train_{k}": order[:4], f"test_{k}": order[4:]}
        for part in ("train", "test"):
            # The published index files are written as fractions by numpy.savetxt.
            text = "\n".join(f"{float(row):e}" for row in arrays[f"{part}_{k}"])
            site.files[f"{base}/index_{part}_{k}.txt"] = text.encode()
    entry = dataclasses.replace(UCI["yacht"], rows=6, features=3, n_splits=2)
    monkeypatch.setattr(module, "UCI", {**UCI, "yacht": entry})
    monkeypatch.setattr(module, "SOURCE", site.url)
    monkeypatch.setitem(module._SUMS, "yacht", content_sum(arrays, 2))
    return arrays


def test_download_assembles_and_caches(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = small_set(site, monkeypatch)
    part = uci("yacht", 1)
    assert np.array_equal(part.x_train, arrays["X"][arrays["train_1"]])
    assert np.array_equal(part.y_test, arrays["y"][arrays["test_1"]])
    assert (cache / "uci/yacht.npz").is_file()
    asked = len(site.asked)
    assert np.array_equal(uci("yacht", 1).x_train, part.x_train)
    assert len(site.asked) == asked == 7
    assert capsys.readouterr().err.count("\n") == 1


def test_changed_source_is_refused_and_not_cached(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_set(site, monkeypatch)
    site.files["yacht/data/index_target.txt"] = b"2\n"
    with pytest.raises(DataError, match=r"not the expected UCI set 'yacht'.*sha256"):
        uci("yacht")
    assert not (cache / "uci/yacht.npz").exists()


@pytest.mark.parametrize("body", [b"<html>not numbers</html>", b"9\n9\n9\n"])
def test_nonsense_from_the_source_is_a_clear_error(
    body: bytes, cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_set(site, monkeypatch)
    site.files["yacht/data/index_features.txt"] = body
    with pytest.raises(DataError, match=r"Cannot find 'uci/yacht\.npz'"):
        uci("yacht")


def test_missing_source_says_how_to_proceed(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOURCE", site.url)
    with pytest.raises(DataError, match=r"Cannot find 'uci/energy\.npz'.*404.*BAYESRULE_DATA"):
        uci("energy")


def test_damaged_cached_file_is_named(cache: Path) -> None:
    (cache / "uci").mkdir(parents=True)
    (cache / "uci/energy.npz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"Cannot read '.*energy\.npz'.*Delete it"):
        uci("energy")
    np.savez(cache / "uci/energy.npz", X=np.zeros((2, 2)))
    with pytest.raises(DataError, match="is not the UCI set 'energy'"):
        uci("energy")


def test_the_command_writes_a_set_that_the_library_reads(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arrays, file = small_set(site, monkeypatch), tmp_path / "new" / "yacht.csv"
    said = bench("table", "yacht", "--out", file)
    assert said.code == 0
    assert f"bayesrule fit {file} --target y" in said.out
    written = read_table(file)
    assert written.columns == ("x0", "x1", "x2", "y")
    assert np.allclose(written.frame[["x0", "x1", "x2"]], arrays["X"], rtol=1e-12)
    assert np.allclose(written.frame["y"], arrays["y"], rtol=1e-12)


def test_the_command_names_the_nearest_set_and_a_folder_that_is_a_file(tmp_path: Path) -> None:
    assert "Did you mean 'yacht'" in only_line(bench("table", "yaht"))
    (tmp_path / "file").touch()
    assert "is a file" in only_line(bench("table", "yacht", "--out", tmp_path / "file" / "y.csv"))
