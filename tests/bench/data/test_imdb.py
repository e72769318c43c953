"""Reviews: real content, the archive's layout, words and their codes."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesrule.app.data import DataError
from benchmarks.data import Vocabulary, encode, imdb, tokenize
from benchmarks.data.imdb import read_reviews

module = sys.modules["benchmarks.data.imdb"]
TEXTS = {
    ("train", "neg", 0, 2): "A bore.<br />Truly\ta bore",
    ("train", "neg", 10, 1): "Next\x85line\x85",
    ("train", "pos", 2, 9): "Ça, c'est GOOD\n",
    ("test", "neg", 1, 4): "so so",
    ("test", "pos", 0, 10): "fine film",
}


@pytest.mark.data
def test_real_imdb(real_data: Path) -> None:
    data = imdb()
    assert len(data.train_texts) == len(data.test_texts) == 25_000
    assert data.train_labels.sum() == data.test_labels.sum() == 12_500
    assert data.train_texts[0].startswith("Story of a man who has unnatural feelings")
    assert sum("\t" in text for text in data.train_texts + data.test_texts) == 27
    assert sum("\x85" in text for text in data.train_texts + data.test_texts) == 681


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for (part, label, number, rating), text in TEXTS.items():
            info = tarfile.TarInfo(f"aclImdb/{part}/{label}/{number}_{rating}.txt")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        info = tarfile.TarInfo("aclImdb/train/unsup/0_0.txt")
        tar.addfile(info, io.BytesIO(b""))
    return packed.getvalue()


@pytest.fixture
def served(cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    site.files["a.tar.gz"] = archive()
    monkeypatch.setattr(module, "URLS", (f"{site.url}/a.tar.gz",))
    monkeypatch.setattr(module, "ARCHIVE_MD5", hashlib.md5(site.files["a.tar.gz"]).hexdigest())
    train = "0\tA bore.<br />Truly a bore\n0\tNext line\n1\tÇa, c'est GOOD\n"
    test = "0\tso so\n1\tfine film\n"
    for part, rows in (("train", train), ("test", test)):
        monkeypatch.setitem(module.SUMS, part, hashlib.sha256(rows.encode()).hexdigest())
    return site


def test_download_builds_both_parts_in_order(served: Any, cache: Path) -> None:
    data = imdb()
    assert data.train_texts == ("A bore.<br />Truly\ta bore", "Next\x85line\x85", "Ça, c'est GOOD")
    assert data.train_labels.tolist() == [0, 0, 1]
    assert data.test_texts == ("so so", "fine film")
    assert imdb().test_labels.tolist() == [0, 1]
    assert served.asked == ["a.tar.gz"]
    names = sorted(path.name for path in (cache / "imdb").iterdir())
    assert names == ["imdb_test.tsv.xz", "imdb_train.tsv.xz"]


def test_changed_rows_are_refused(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.SUMS, "test", "0" * 64)
    with pytest.raises(DataError, match="not the expected test part of IMDB"):
        imdb()


@pytest.mark.parametrize("raw", [b"1\t9\t0\n", b"x\t9\t0\ttext\n"])
def test_lines_of_another_kind_are_named(raw: bytes) -> None:
    with pytest.raises(DataError, match=r"'f', line 2"):
        read_reviews(b"1\t9\t0\tgood\n" + raw, "f")


def test_words() -> None:
    assert tokenize("Don't<BR>stop — naïve_2!") == ["don't", "stop", "naïve", "2"]
    assert tokenize("<br /><br />") == []


def test_vocabulary_is_ranked_and_ties_are_alphabetical() -> None:
    words = Vocabulary.build(["b a c", "c b d"], size=3)
    assert words.words == ("b", "c", "a")
    assert len(words) == 5
    assert words.index["b"] == 2


def test_encode_cuts_pads_and_marks_unknown_words() -> None:
    words = Vocabulary(("good", "film"))
    codes = encode(["good film good film", "a film", ""], words, 3)
    assert torch.equal(codes, torch.tensor([[2, 3, 2], [1, 3, 0], [0, 0, 0]]))
    assert codes.dtype == torch.int64


def test_encode_faults() -> None:
    with pytest.raises(DataError, match=r"Write \[text\]"):
        encode("one text", Vocabulary(("a",)), 3)
    with pytest.raises(DataError, match="length=0"):
        encode(["a"], Vocabulary(("a",)), 0)
    with pytest.raises(DataError, match="size=0"):
        Vocabulary.build(["a"], 0)
