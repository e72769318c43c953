"""Documents as counts of words, in sparse tables that keep only words that occur."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesrule.graphical import tables

# Pairs of a document and a word in one group: with a number for each topic they fit a cache.
_PAIRS = 1 << 13


class Group(NamedTuple):
    """b documents of about the same length: rows (b,), words (b, l) and counts, padded with 0."""

    documents: Tensor
    words: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Documents:
    """Words (p,) and their counts (p,), document by document; `lengths` (D,) says how many each."""

    words: Tensor
    counts: Tensor
    lengths: Tensor
    vocabulary: int

    @classmethod
    def of(cls, x: Any, vocabulary: int | None = None) -> Documents:
        """From counts (documents, words): scipy sparse, an array, a tensor or a frame."""
        words, counts, lengths, width = _sparse(x) if hasattr(x, "tocsr") else _dense(x)
        if vocabulary is not None and width != vocabulary:
            raise ValueError(f"x has {width} words; the model was fitted to {vocabulary}.")
        _check(words, counts, lengths)
        return cls(words, counts, lengths, width)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> float:
        """The total number of words, repetitions included."""
        return float(self.counts.sum())

    @property
    def starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    def __getitem__(self, which: Tensor) -> Documents:
        """Some of the documents."""
        lengths = self.lengths[which]
        inside = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(
            lengths
        )
        at = self.starts[which].repeat_interleave(lengths) + inside
        return Documents(self.words[at], self.counts[at], lengths, self.vocabulary)

    def groups(self) -> Iterator[Group]:
        """All documents, in groups of similar lengths."""
        order = self.lengths.argsort(descending=True)
        begin = 0
        while begin < len(order):
            longest = max(int(self.lengths[order[begin]]), 1)
            end = begin + max(_PAIRS // longest, 1)
            yield self._padded(order[begin:end], longest)
            begin = end

    def _padded(self, which: Tensor, longest: int) -> Group:
        columns = torch.arange(longest)
        there = columns < self.lengths[which].unsqueeze(1)
        at = torch.where(there, self.starts[which].unsqueeze(1) + columns, 0)
        counts = torch.where(there, self.counts[at], 0.0)
        return Group(which, torch.where(there, self.words[at], 0), counts)


def _sparse(x: Any) -> tuple[Tensor, Tensor, Tensor, int]:
    table = x.tocsr()
    if not table.has_canonical_format:
        table = table.copy()  # leaves the caller's table as it is
        table.sum_duplicates()
    counts = torch.as_tensor(np.asarray(table.data, dtype=np.float64))
    words = torch.as_tensor(table.indices.astype(np.int64))
    lengths = torch.as_tensor(np.diff(table.indptr).astype(np.int64))
    return words, counts, lengths, int(table.shape[1])


def _dense(x: Any) -> tuple[Tensor, Tensor, Tensor, int]:
    table = tables.matrix(x).cpu()
    rows, words = table.nonzero(as_tuple=True)
    lengths = torch.bincount(rows, minlength=len(table))
    return words, table[rows, words].double(), lengths, int(table.shape[1])


def _check(words: Tensor, counts: Tensor, lengths: Tensor) -> None:
    bad = ~counts.isfinite() | (counts < 0)
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        row = int((lengths.cumsum(0) <= at).sum())
        raise ValueError(
            f"Counts are finite numbers of 0 or more; document {row}, word {int(words[at])} has "
            f"{float(counts[at]):g}."
        )
    if len(counts) == 0 or float(counts.sum()) == 0.0:
        raise ValueError("There is no word in any document.")
