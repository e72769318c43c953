"""Starting points of fits: k-means on a random subset of the rows."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

MOST_ROWS = 10_000
_ROUNDS = 20


def k_means(x: Tensor, num: int, generator: Generator) -> Tensor:
    """`num` centres (num, d) of rows: k-means++ seeds, then Lloyd's rounds, on a random subset."""
    sample = x[torch.randperm(len(x), generator=generator)[:MOST_ROWS]]
    centres = _spread_out(sample, num, generator)
    for _ in range(_ROUNDS):
        nearest = torch.cdist(sample, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, sample)
        counts = torch.bincount(nearest, minlength=num).unsqueeze(1)
        new = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        if torch.equal(new, centres):
            break
        centres = new
    return centres


def _spread_out(x: Tensor, num: int, generator: Generator) -> Tensor:
    """Rows far from each other: of a few drawn by squared distance, takes the best each time.

    Arthur & Vassilvitskii (2007), in the greedy form of their last section.
    """
    chosen = [int(torch.randint(len(x), (), generator=generator))]
    near = torch.cdist(x, x[chosen]).square()[:, 0]
    while len(chosen) < num:
        weights = near.cpu() if float(near.sum()) > 0 else torch.ones(len(x))
        tries = 2 + int(math.log(num))
        drawn = torch.multinomial(weights, tries, replacement=True, generator=generator)
        left = torch.minimum(near.unsqueeze(1), torch.cdist(x, x[drawn.to(x.device)]).square())
        best = int(left.sum(0).argmin())
        chosen.append(int(drawn[best]))
        near = left[:, best]
    return x[chosen]


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each row, one-hot (n, K)."""
    number = torch.cdist(x, centres).argmin(1)
    return torch.nn.functional.one_hot(number, len(centres)).to(x.dtype)
