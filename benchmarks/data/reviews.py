"""IMDB reviews as tokens for a recurrent net, and a small file of them for other machines."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.app.data.errors import DataError
from benchmarks.data.cache import UNREADABLE
from benchmarks.data.download import place
from benchmarks.data.imdb import PAD, UNKNOWN, Vocabulary, imdb, tokenize

Arrays = dict[str, NDArray[Any]]
Split = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and targets to learn from, then those to test with."""

WORDS, LENGTH = 20_000, 80
MOST_WORDS = 1 << 16  # tokens are kept in two bytes
_NAMES = ("x_train", "y_train", "x_test", "y_test")
_DTYPES = dict(zip(_NAMES, (np.uint16, np.uint8) * 2, strict=True))


def reviews(
    words: int = WORDS,
    length: int = LENGTH,
    device: torch.device | str = "cpu",
    *,
    folder: Path | str | None = None,
) -> Split:
    """Tokens (n, length) int64 and targets (n,) float32, 1 for praise, of both parts of IMDB.

    A review is its last `length` tokens, padded at the front; 0 is padding, 1 any word that is not
    among the `words` - 2 most frequent of the training part. At 80 tokens, which go with this size
    of net in well-known examples and are cheap, 92 % of the training reviews are cut and a third
    of all tokens is left; at 200 it is 41 % and two thirds. As published, the reviews are sorted by
    target; here their order is random, and the same each time.

    With a `folder` the tokens are read from the file there that `save_tokens` would write, or made
    and kept there if there is none.
    """
    _check_sizes(words, length)
    if folder is None:
        return _tensors(_made(words, length), device)
    path = Path(folder) / file_name(words, length)
    if not path.exists():
        save_tokens(path, words, length)
    return load_tokens(path, device, words=words, length=length)


def file_name(words: int = WORDS, length: int = LENGTH) -> str:
    """The name of a file of tokens in a folder of them.

    >>> file_name(5000, 100)
    'imdb_5000_words_100_tokens.npz'
    """
    return f"imdb_{words}_words_{length}_tokens.npz"


def save_tokens(path: Path | str, words: int = WORDS, length: int = LENGTH) -> Path:
    """Write the tokens of all reviews to one .npz file, 5 MB as they are by default."""
    _check_sizes(words, length)
    target = Path(path)
    if target.suffix != ".npz":
        raise DataError(f"Tokens are kept in a .npz file; got '{target}'. Let its name end so.")
    arrays = _made(words, length)

    def write(part: Path) -> None:
        np.savez_compressed(
            part,
            words=np.int64(words),
            x_train=arrays["x_train"],
            y_train=arrays["y_train"],
            x_test=arrays["x_test"],
            y_test=arrays["y_test"],
        )

    try:
        return place(target, write)
    except (DataError, OSError) as error:
        raise DataError(
            f"Cannot write '{target}' ({error.__cause__ or error}). Give a file in a folder that "
            "can be written to."
        ) from error


def load_tokens(
    path: Path | str,
    device: torch.device | str = "cpu",
    *,
    words: int | None = None,
    length: int | None = None,
) -> Split:
    """Read what `save_tokens` wrote, as `reviews` gives it; other files are refused.

    With `words` or `length`, the file must have been made with these numbers.
    """
    source = Path(path)
    arrays = _read(source)
    kept = int(arrays.pop("words"))
    _check_content(source, arrays, kept)
    found = {"words": kept, "length": arrays["x_train"].shape[1]}
    for name, asked in (("words", words), ("length", length)):
        if asked is not None and found[name] != asked:
            raise DataError(
                f"'{source}' was made with {name}={found[name]}; asked for {name}={asked}. Delete "
                "it to have it made again, or ask for what it has."
            )
    return _tensors(arrays, device)


def _check_sizes(words: int, length: int) -> None:
    if not 3 <= words <= MOST_WORDS:
        raise DataError(
            f"Takes from 3 words (padding, other, one word) to {MOST_WORDS:,}; got words={words}."
        )
    if length < 1:
        raise DataError(f"A review is at least one token; got length={length}.")


@lru_cache(maxsize=4)
def _made(words: int, length: int) -> Arrays:
    """The tokens of both parts in random order, from the raw texts."""
    data = imdb()
    vocabulary = Vocabulary.build(data.train_texts, words - (UNKNOWN + 1))
    arrays: Arrays = {}
    for part, texts, labels in (
        ("train", data.train_texts, data.train_labels),
        ("test", data.test_texts, data.test_labels),
    ):
        order = np.random.default_rng(0).permutation(len(texts))
        arrays[f"x_{part}"] = last_tokens(texts, vocabulary, length)[order]
        arrays[f"y_{part}"] = labels.numpy().astype(np.uint8)[order]
    return arrays


def last_tokens(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> NDArray[np.uint16]:
    """The last `length` words of each text as indices (n, length), padded at the front.

    >>> last_tokens(("a bad film", "film"), Vocabulary(("a", "film")), length=2)
    array([[1, 3],
           [0, 3]], dtype=uint16)
    """
    out = np.full((len(texts), length), PAD, np.uint16)
    for row, text in zip(out, texts, strict=True):
        tokens = [vocabulary.index.get(word, UNKNOWN) for word in tokenize(text)[-length:]]
        row[length - len(tokens) :] = tokens
    return out


def _tensors(arrays: Arrays, device: torch.device | str) -> Split:
    # Converted here: devices know few operations on numbers of two bytes without a sign.
    x, y, x_test, y_test = (torch.from_numpy(arrays[name]) for name in _NAMES)
    parts = (x.long(), y.float(), x_test.long(), y_test.float())
    x, y, x_test, y_test = (part.to(device) for part in parts)
    return x, y, x_test, y_test


def _read(source: Path) -> Arrays:
    """The arrays of a file of tokens, each of its own type."""
    try:
        # numpy leaves a file that it opened itself open when it is not an archive.
        with source.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("words", *_NAMES)}
    except FileNotFoundError as error:
        raise DataError(
            f"There is no file of tokens '{source}'. Write one with save_tokens where the "
            "reviews are, and bring it here."
        ) from error
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile, *UNREADABLE) as error:
        raise _refused(source, str(error)) from error
    wrong = [name for name, dtype in _DTYPES.items() if arrays[name].dtype != dtype]
    if wrong or arrays["words"].shape != () or arrays["words"].dtype != np.int64:
        raise _refused(source, f"the types of {wrong or ['words']} are others")
    return arrays


def _check_content(source: Path, arrays: Arrays, words: int) -> None:
    """The shapes fit, tokens are below `words` and targets are 0 or 1."""
    shapes = {name: arrays[name].shape for name in _NAMES}
    tokens, tests = shapes["x_train"], shapes["x_test"]
    fits = len(tokens) == len(tests) == 2 and tokens[1] == tests[1] > 0
    if not fits or shapes["y_train"] != tokens[:1] or shapes["y_test"] != tests[:1]:
        raise _refused(source, f"its shapes {shapes} do not fit")
    for name, limit in zip(_NAMES, (words, 2) * 2, strict=True):
        largest = int(arrays[name].max(initial=0))
        if largest >= limit:
            raise _refused(source, f"{name} has {largest} where numbers are below {limit}")


def _refused(source: Path, why: str) -> DataError:
    return DataError(
        f"'{source}' is not a file of tokens: {why}. Delete it and write it with save_tokens."
    )
