"""Thumbnails of large matrices, with their singular terms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SIZE, TERMS = 32, 3


def thumbnail(matrix: Tensor, size: int = SIZE, terms: int = TERMS) -> dict[str, Any]:
    """A matrix (m, n) averaged over blocks, at most size × size, and its first singular terms.

    A mean over blocks is linear, so the thumbnail of the matrix's rank-k version is the sum of the
    first k outer products of `left` and `right`: `version` puts it together.

    >>> small = thumbnail(torch.outer(torch.ones(64), torch.ones(3)))
    >>> torch.tensor(small["full"]).shape, version(small, 1).shape
    (torch.Size([32, 3]), torch.Size([32, 3]))
    """
    given = matrix.double().cpu()
    left, values, right = torch.linalg.svd(given, full_matrices=False)
    roots = values[:terms].sqrt()
    rows, columns = (min(size, length) for length in given.shape)
    return {
        "full": _digits(functional.adaptive_avg_pool2d(given[None], (rows, columns))[0]),
        "left": _digits(_pooled((left[:, :terms] * roots).mT, rows)),
        "right": _digits(_pooled(right[:terms] * roots[:, None], columns)),
    }


def version(small: dict[str, Any], rank: int) -> Tensor:
    """The thumbnail of a matrix cut down to a rank."""
    left, right = (torch.tensor(small[name])[:rank] for name in ("left", "right"))
    return left.mT @ right


def _pooled(rows: Tensor, size: int) -> Tensor:
    return functional.adaptive_avg_pool1d(rows, size)


def _digits(values: Tensor) -> list[list[float]]:
    """Rounds to four digits, more than a picture shows."""
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]
