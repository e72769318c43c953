"""Sequences of different lengths, one after another in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Steps of all sequences (T, *), and how many of them each sequence has (S,)."""

    x: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, x: Tensor, lengths: Sequence[int] | None) -> Sequences:
        """One sequence where no lengths are given."""
        found = torch.tensor([len(x)] if lengths is None else [int(one) for one in lengths])
        if int(found.sum()) != len(x) or bool((found < 1).any()):
            raise ValueError(
                f"lengths are 1 or more and sum to the {len(x)} rows of x; got "
                f"{found[:6].tolist()}{'…' if len(found) > 6 else ''}, which sum to "
                f"{int(found.sum())}."
            )
        return cls(x, found)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> int:
        """How many steps there are."""
        return len(self.x)

    @property
    def ends(self) -> Tensor:
        """The last step of each, (S,)."""
        return self.lengths.cumsum(0) - 1

    @property
    def begins(self) -> Tensor:
        """Whether a sequence begins with a step, (T,)."""
        found = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        found[self.ends + 1 - self.lengths] = True
        return found

    def __getitem__(self, which: Tensor) -> Sequences:
        """Some of the sequences."""
        parts = self.x.split(self.lengths.tolist())
        return Sequences(torch.cat([parts[int(one)] for one in which]), self.lengths[which])


def lengths_of(x: Any, lengths: Sequence[int] | None) -> tuple[Any, Sequence[int] | None]:
    """A list of tables as one table and the length of each; one table as it is."""
    if lengths is not None or not isinstance(x, list | tuple) or not x or np.ndim(x[0]) == 0:
        return x, lengths
    if not hasattr(x[0], "shape"):
        return x, None  # rows as lists of numbers
    kinds = [
        np.asarray(one) if not isinstance(one, Tensor) else one.detach().cpu().numpy() for one in x
    ]
    widths = {one.shape[1:] for one in kinds}
    if len(widths) != 1:
        raise ValueError(f"All sequences have the same columns; got {sorted(map(str, widths))}.")
    return np.concatenate(kinds), [len(one) for one in kinds]
