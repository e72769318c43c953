"""Split rows at random into train, validation and test parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.app.data.errors import DataError
from bayesrule.app.data.table import Table
from bayesrule.app.data.tabular import Encoder


def _counts(size: int, fractions: Sequence[float], carry: list[float]) -> list[int]:
    """Round ``size × fractions`` to integers that sum to `size`; ``carry`` keeps the remainders."""
    wanted = [fraction * size + rest for fraction, rest in zip(fractions, carry, strict=True)]
    counts = [max(0, math.floor(want + 1e-9)) for want in wanted]
    while sum(counts) != size:
        step = 1 if sum(counts) < size else -1
        gaps = [step * (want - count) for want, count in zip(wanted, counts, strict=True)]
        usable = [j for j, count in enumerate(counts) if count + step >= 0]
        counts[max(usable, key=lambda j: gaps[j])] += step
    if counts[0] == 0:  # a class that training never sees could not be predicted
        counts[counts.index(max(counts))] -= 1
        counts[0] = 1
    carry[:] = [want - count for want, count in zip(wanted, counts, strict=True)]
    return counts


def split_rows(
    n: int,
    fractions: Sequence[float] = (0.9, 0.1),
    *,
    seed: int = 0,
    stratify: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return disjoint sorted row indices, one tensor for each fraction, that cover 0..n−1.

    With class labels (n,) to `stratify` by, each part keeps the class shares, and the first part,
    for training, gets a row of every class. The split uses its own generator with this seed.

    >>> train, test = split_rows(10, (0.8, 0.2), seed=1)
    >>> len(train), len(test), sorted([*train.tolist(), *test.tolist()]) == list(range(10))
    (8, 2, True)
    """
    if len(fractions) < 2 or min(fractions) <= 0 or not math.isclose(sum(fractions), 1.0):
        raise DataError(
            f"Split fractions are two or more, positive, and sum to 1; got {list(fractions)}."
        )
    if stratify is not None and stratify.shape != (n,):
        raise DataError(f"There are {n} rows, but labels of shape {tuple(stratify.shape)}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    labels = torch.zeros(n, dtype=torch.int64) if stratify is None else stratify.cpu()
    parts: list[list[Tensor]] = [[] for _ in fractions]
    carry = [0.0] * len(fractions)
    for label in labels.unique():
        rows = order[labels[order] == label]
        chosen = rows.split(_counts(len(rows), fractions, carry))
        for part, of_label in zip(parts, chosen, strict=True):
            part.append(of_label)
    result = tuple(torch.cat(part).sort().values if part else order[:0] for part in parts)
    if any(len(part) == 0 for part in result):
        raise DataError(
            f"{n} rows are too few for parts of {list(fractions)}: one part would be empty. "
            "Use more rows or fewer parts."
        )
    return result


def train_and_test(
    table: Table, encoder: Encoder, test_fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the training rows, at least two, and the test rows; both keep the class shares."""
    labels = encoder.targets(table) if encoder.task.classification else None
    fractions = (1.0 - test_fraction, test_fraction)
    try:
        train, test = split_rows(len(table), fractions, seed=seed, stratify=labels)
        what = f"leaves {len(train)} of them to learn from"
    except DataError:
        train, what = torch.empty(0), "leaves none on one side"
    if len(train) < 2:
        raise DataError(
            f"'{table.name}' has {len(table)} rows; test_fraction {test_fraction:g} {what}. Use "
            "more rows, another fraction, or in fit test_fraction 0 to learn from all rows."
        )
    return train, test
