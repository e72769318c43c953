"""Where fits begin: k-means on some of the rows."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_MOST_ROWS = 10_000
_ROUNDS = 20


def k_means(x: Tensor, num: int, generator: Generator) -> Tensor:
    """`num` centres (num, d) of rows: k-means++ seeds, then Lloyd's rounds, on a random subset."""
    some = x[torch.randperm(len(x), generator=generator)[:_MOST_ROWS]]
    centres = _spread_out(some, num, generator)
    for _ in range(_ROUNDS):
        nearest = torch.cdist(some, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, some)
        counts = torch.bincount(nearest, minlength=num).unsqueeze(1)
        new = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        if torch.equal(new, centres):
            break
        centres = new
    return centres


def _spread_out(x: Tensor, num: int, generator: Generator) -> Tensor:
    """Rows far from each other, drawn by squared distance; Arthur & Vassilvitskii (2007)."""
    chosen = [x[int(torch.randint(len(x), (), generator=generator))]]
    near = (x - chosen[0]).square().sum(1)
    while len(chosen) < num:
        weights = near.cpu() if float(near.sum()) > 0 else torch.ones(len(x))
        row = int(torch.multinomial(weights, 1, generator=generator))
        chosen.append(x[row])
        near = torch.minimum(near, (x - x[row]).square().sum(1))
    return torch.stack(chosen)


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """One-hot rows that say which centre is the nearest, (n, K)."""
    found = torch.cdist(x, centres).argmin(1)
    return torch.nn.functional.one_hot(found, len(centres)).to(x.dtype)
