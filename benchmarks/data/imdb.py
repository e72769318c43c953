"""The IMDB film reviews (Maas et al., 2011), a tokenizer and a vocabulary."""

from __future__ import annotations

import hashlib
import lzma
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bayesrule.app.data.errors import DataError
from benchmarks.data.cache import UNREADABLE, cache_folder, find, locate, read_unpacked
from benchmarks.data.download import place

ARCHIVE = "imdb/aclImdb_v1.tar.gz"
ARCHIVE_MD5 = "7c2ac02c03563afcf9b574c7e56c153a"
URLS = ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",)
PAD, UNKNOWN = 0, 1

# sha256 of the rows with every run of white space made one space (see _sum).
SUMS = {
    "train": "bf9c27461ea36a5780eeaae377d5c23c9c1550e666a143a79b9a659d34da1920",
    "test": "de01a975b5eb2196b1367fcb5e6f881033c8659e28f7dfb17201ab8e4a4eaac6",
}

_FILE = "imdb/imdb_{}.tsv.xz"
_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Reviews:
    """Raw texts (with ``<br />``) and labels (n,) int64: 1 for praise, 0 for blame.

    As published, all blame comes first: shuffle.
    """

    train_texts: tuple[str, ...]
    train_labels: Tensor
    test_texts: tuple[str, ...]
    test_labels: Tensor


@dataclass(frozen=True)
class Vocabulary:
    """The most frequent words; index 0 is padding, 1 any other word, ``words[i]`` is i + 2."""

    words: tuple[str, ...]
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {word: i + 2 for i, word in enumerate(self.words)})

    def __len__(self) -> int:
        return len(self.words) + 2

    @classmethod
    def build(cls, texts: Iterable[str], size: int = 10_000) -> Vocabulary:
        """Take the ``size`` most frequent words of the training texts, ties by the alphabet.

        >>> Vocabulary.build(["a film, a FILM!", "a bore"], size=2).words
        ('a', 'film')
        """
        if size < 1:
            raise DataError(f"A vocabulary needs at least one word; got size={size}.")
        counts = Counter(word for text in texts for word in tokenize(text))
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return cls(tuple(word for word, _ in ranked[:size]))


def tokenize(text: str) -> list[str]:
    """Return the lower-case words of a text without its line-break tags.

    >>> tokenize("It's GREAT.<br /><br />10/10")
    ["it's", 'great', '10', '10']
    """
    return _WORD.findall(_BREAK.sub(" ", text).lower())


def encode(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> Tensor:
    """Return the first ``length`` words of each text as indices (n, length), padded with 0.

    >>> encode(["a bad film", "film"], Vocabulary(("a", "film")), length=3)
    tensor([[2, 1, 3],
            [3, 0, 0]])
    """
    if length < 1:
        raise DataError(f"Texts are encoded to at least one word; got length={length}.")
    if isinstance(texts, str):
        raise DataError("encode takes a list of texts; got one string. Write [text].")
    out = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = [vocabulary.index.get(word, UNKNOWN) for word in tokenize(text)[:length]]
        out[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return out


def read_reviews(raw: bytes, name: str) -> tuple[tuple[str, ...], Tensor]:
    """Parse lines of label, rating, number and text, separated by tabs.

    Texts hold tabs and U+0085, so lines end at a newline only and columns split three times.
    """
    try:
        rows = [line.split("\t", 3) for line in raw.decode("utf-8").split("\n") if line]
    except UnicodeDecodeError as error:
        raise DataError(f"'{name}' is not UTF-8 text: {error}.") from error
    for number, row in enumerate(rows):
        if len(row) != 4 or row[0] not in ("0", "1"):
            raise DataError(f"'{name}', line {number + 1}: expected label, rating, number, text.")
    labels = torch.tensor([int(row[0]) for row in rows], dtype=torch.int64)
    return tuple(row[3] for row in rows), labels


def _sum(texts: Sequence[str], labels: Tensor) -> str:
    """Return a sum that does not see white space, which copies of the set treat differently."""
    digest = hashlib.sha256()
    for text, label in zip(texts, labels.tolist(), strict=True):
        digest.update(f"{label}\t{' '.join(text.split())}\n".encode())
    return digest.hexdigest()


def _checked(raw: bytes, part: str, name: str) -> tuple[tuple[str, ...], Tensor]:
    texts, labels = read_reviews(raw, name)
    if (got := _sum(texts, labels)) != SUMS[part]:
        raise DataError(
            f"'{name}' is not the expected {part} part of IMDB: the sha256 of its rows is {got}, "
            f"expected {SUMS[part]}. Delete it to have it fetched again."
        )
    return texts, labels


def _collect(archive: Path) -> dict[str, bytes]:
    """Return both parts as tab-separated lines, in the order of label and number."""
    lines: dict[str, dict[tuple[int, int], str]] = {"train": {}, "test": {}}
    with tarfile.open(archive) as tar:
        for member in tar:
            match = _MEMBER.fullmatch(member.name)
            stream = tar.extractfile(member) if match else None
            if match is None or stream is None:
                continue
            part, label, number = match[1], int(match[2] == "pos"), int(match[3])
            # Plain strip would also take U+0085 and U+00A0, with which some texts end.
            text = re.sub(r"[\r\n]+", " ", stream.read().decode("utf-8").strip(" \t\r\n"))
            lines[part][label, number] = f"{label}\t{match[4]}\t{number}\t{text}\n"
    return {
        part: "".join(rows[key] for key in sorted(rows)).encode() for part, rows in lines.items()
    }


def _unpack() -> None:
    archive = locate(ARCHIVE, md5=ARCHIVE_MD5, urls=URLS)
    try:
        parts = _collect(archive)
    except (tarfile.TarError, UnicodeDecodeError, *UNREADABLE) as error:
        raise DataError(f"'{archive}' is not the IMDB archive: {error}.") from error
    for part, raw in parts.items():
        _checked(raw, part, str(archive))

        def write(path: Path, raw: bytes = raw) -> None:
            path.write_bytes(lzma.compress(raw, preset=1))  # ten times faster than the default

        place(cache_folder() / _FILE.format(part), write)
    if archive.is_relative_to(cache_folder()):
        archive.unlink()  # its content lies beside it now


def _part(part: str) -> tuple[tuple[str, ...], Tensor]:
    path = find(_FILE.format(part))
    if path is None:
        _unpack()
        path = cache_folder() / _FILE.format(part)
    return _checked(read_unpacked(path), part, str(path))


def imdb() -> Reviews:
    """Return the 25,000 training and 25,000 test reviews, verified."""
    return Reviews(*_part("train"), *_part("test"))
