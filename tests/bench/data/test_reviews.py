"""Reviews as tokens: what is kept of a text, the order, and files that travel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesrule.app.data import DataError
from benchmarks.data import Reviews, Vocabulary
from benchmarks.data import reviews as module
from benchmarks.data.reviews import file_name, last_tokens, load_tokens, reviews, save_tokens

TRAIN = ("a bore", "a bad bad bore", "a film", "a good good film indeed")
TEST = ("a bad film", "unheard unheard unheard a good film")


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Six short reviews, blame first, and how often the texts were asked for."""
    asked: list[int] = []

    def few() -> Reviews:
        asked.append(1)
        return Reviews(TRAIN, torch.tensor([0, 0, 1, 1]), TEST, torch.tensor([0, 1]))

    if request.node.get_closest_marker("data") is None:
        monkeypatch.setattr(module, "imdb", few)
    module._made.cache_clear()
    yield asked
    module._made.cache_clear()


def words_of(row: torch.Tensor) -> str:
    """The words again; the vocabulary is that of TRAIN, by frequency and alphabet."""
    names = ["_", "?", *Vocabulary.build(TRAIN, 100).words]
    return " ".join(names[i] for i in row.tolist())


def test_the_last_words_are_kept_and_padding_comes_first() -> None:
    x, y, x_test, y_test = reviews(words=20, length=4)
    assert x.dtype == x_test.dtype == torch.int64
    assert y.dtype == y_test.dtype == torch.float32
    found = {words_of(row): label for row, label in zip(x, y.tolist(), strict=True)}
    assert found == {
        "_ _ a bore": 0.0,
        "a bad bad bore": 0.0,
        "_ _ a film": 1.0,
        "good good film indeed": 1.0,
    }
    found = {words_of(row): label for row, label in zip(x_test, y_test.tolist(), strict=True)}
    assert found == {"_ a bad film": 0.0, "? a good film": 1.0}


def test_only_the_most_frequent_words_of_the_training_part_have_numbers() -> None:
    x, _, x_test, _ = reviews(words=4, length=3)
    assert int(x.max()) == int(x_test.max()) == 3
    kept = Vocabulary.build(TRAIN, 2)
    assert kept.words == ("a", "bad")
    assert sorted(x_test.tolist()) == [[2, 1, 1], [2, 3, 1]]


def test_a_text_without_words_is_padding() -> None:
    assert last_tokens(["!"], Vocabulary(("a",)), 2).tolist() == [[0, 0]]


def test_the_order_is_random_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(200).ge(100).long()
    texts = tuple(f"w{i}" for i in range(200))
    monkeypatch.setattr(module, "imdb", lambda: Reviews(texts, labels, texts, labels))
    x, y, _, _ = reviews(words=300, length=1)
    assert 30 < y[:100].sum() < 70, "as published, the first half would be all 0"
    by_alphabet = sorted(texts)
    assert all(
        float(by_alphabet[int(token) - 2][1:]) >= 100 if label else True
        for token, label in zip(x[:, 0], y, strict=True)
    ), "targets stay with their texts"
    module._made.cache_clear()
    assert torch.equal(x, reviews(words=300, length=1)[0])


def test_texts_are_read_once(fresh: list[int]) -> None:
    first, again = reviews(20, 4), reviews(20, 4)
    assert fresh == [1]
    first[0].zero_()  # the caller's own
    assert again[0].any()
    assert reviews(20, 4)[0].any()


def test_a_file_gives_the_same_without_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reviews(20, 4)
    path = save_tokens(tmp_path / "kept" / "tokens.npz", 20, 4)
    monkeypatch.delattr(module, "imdb")
    for got in (load_tokens(path), load_tokens(path, "cpu", words=20, length=4)):
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype


def test_a_folder_is_filled_once_and_then_read(tmp_path: Path, fresh: list[int]) -> None:
    first = reviews(20, 4, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [file_name(20, 4)]
    module._made.cache_clear()
    again = reviews(20, 4, folder=tmp_path)
    assert fresh == [1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with np.load(tmp_path / file_name(20, 4)) as file:
        assert file["x_train"].dtype == np.uint16


def test_a_file_made_for_other_sizes_is_refused(tmp_path: Path) -> None:
    path = save_tokens(tmp_path / file_name(20, 5), 20, 4)
    with pytest.raises(DataError, match=r"made with length=4; asked for length=5\. Delete it"):
        reviews(20, 5, folder=tmp_path)
    with pytest.raises(DataError, match="made with words=20; asked for words=21"):
        load_tokens(path, words=21)


def arrays(**changed: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "words": np.int64(9),
        "x_train": np.full((3, 2), 8, np.uint16),
        "y_train": np.ones(3, np.uint8),
        "x_test": np.zeros((1, 2), np.uint16),
        "y_test": np.zeros(1, np.uint8),
    }
    return {key: value for key, value in (whole | changed).items() if value is not None}


def test_a_file_of_the_right_content_is_taken(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    x, y, x_test, y_test = load_tokens(tmp_path / "a.npz")
    assert x.tolist() == [[8, 8]] * 3
    assert y.tolist() == [1.0] * 3
    assert x_test.tolist() == [[0, 0]]
    assert y_test.tolist() == [0.0]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"y_test": None}, "y_test"),
        ({"x_train": np.zeros((3, 2), np.int64)}, r"the types of \['x_train'\] are others"),
        ({"words": np.float64(9)}, r"the types of \['words'\] are others"),
        ({"words": np.int64(8)}, "x_train has 8 where numbers are below 8"),
        ({"y_train": np.full(3, 2, np.uint8)}, "y_train has 2 where numbers are below 2"),
        ({"y_train": np.ones(2, np.uint8)}, "do not fit"),
        ({"x_test": np.zeros((1, 3), np.uint16)}, "do not fit"),
        ({"x_test": np.zeros(2, np.uint16)}, "do not fit"),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, changed: dict[str, Any], expected: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**changed))
    with pytest.raises(DataError, match=expected) as caught:
        load_tokens(tmp_path / "a.npz")
    assert "is not a file of tokens" in str(caught.value)
    assert "write it with save_tokens" in str(caught.value)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    text, array, cut = tmp_path / "a.npz", tmp_path / "a.npy", tmp_path / "cut.npz"
    text.write_text("words")
    np.save(array, np.zeros(3))
    whole = save_tokens(tmp_path / "whole.npz", 20, 4).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    for path in (text, array, cut, tmp_path):
        with pytest.raises(DataError, match="is not a file of tokens"):
            load_tokens(path)
    damaged = bytearray(whole)
    damaged[whole.index(b"x_train.npy") + 40] ^= 0xFF
    cut.write_bytes(damaged)
    with pytest.raises(DataError, match="is not a file of tokens"):
        load_tokens(cut)
    with pytest.raises(DataError, match=r"There is no file of tokens .*Write one with save_tokens"):
        load_tokens(tmp_path / "none.npz")


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"Cannot write '.*a\.npz' .*can be written to"):
        save_tokens(tmp_path / "file" / "a.npz", 20, 4)
    with pytest.raises(DataError, match=r"kept in a \.npz file; got '.*tokens\.bin'"):
        save_tokens(tmp_path / "tokens.bin", 20, 4)


@pytest.mark.parametrize(
    ("words", "length", "expected"),
    [(2, 4, "got words=2"), (65_537, 4, "to 65,536; got words=65537"), (9, 0, "got length=0")],
)
def test_sizes_are_checked_before_any_reading(
    words: int, length: int, expected: str, tmp_path: Path, fresh: list[int]
) -> None:
    with pytest.raises(DataError, match=expected):
        reviews(words, length)
    with pytest.raises(DataError, match=expected):
        save_tokens(tmp_path / "a.npz", words, length)
    assert not fresh


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("BAYESRULE_DATA"), reason="BAYESRULE_DATA is not set")
def test_the_real_reviews() -> None:
    x, y, x_test, y_test = reviews()
    assert x.shape == x_test.shape == (25_000, 80)
    assert int(x.max()) == 19_999
    assert y.sum() == y_test.sum() == 12_500
    assert 2_300 < y[-5_000:].sum() < 2_700, "held-out reviews are of both kinds"
    whole = (x[:, 0] != 0).double().mean()
    assert whole == pytest.approx(0.92, abs=0.01)
    assert (x_test == 1).double().mean() < 0.03
