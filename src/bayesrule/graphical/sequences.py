"""Sequences of different lengths, concatenated in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """The steps of all sequences (T, *), and the length of each sequence (S,)."""

    x: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, x: Tensor, lengths: Sequence[int] | None) -> Sequences:
        """Checks the lengths; without any, the table is one sequence."""
        sizes = torch.tensor([len(x)] if lengths is None else [int(size) for size in lengths])
        if int(sizes.sum()) != len(x) or bool((sizes < 1).any()):
            raise ValueError(
                f"lengths are 1 or more and sum to the {len(x)} rows of x; got "
                f"{sizes[:6].tolist()}{'…' if len(sizes) > 6 else ''}, which sum to "
                f"{int(sizes.sum())}."
            )
        return cls(x, sizes)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> int:
        """The number of steps."""
        return len(self.x)

    @property
    def ends(self) -> Tensor:
        """The last step of each sequence, (S,)."""
        return self.lengths.cumsum(0) - 1

    @property
    def begins(self) -> Tensor:
        """Whether a step is the first of its sequence, (T,)."""
        begins = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        begins[self.ends + 1 - self.lengths] = True
        return begins

    def __getitem__(self, which: Tensor) -> Sequences:
        """Some of the sequences."""
        parts = self.x.split(self.lengths.tolist())
        return Sequences(torch.cat([parts[int(number)] for number in which]), self.lengths[which])


def lengths_of(x: Any, lengths: Sequence[int] | None) -> tuple[Any, Sequence[int] | None]:
    """Concatenates a list of tables and returns their lengths; leaves one table as it is."""
    if lengths is not None or not isinstance(x, list | tuple) or not x or np.ndim(x[0]) == 0:
        return x, lengths
    if not hasattr(x[0], "shape"):
        return x, None  # rows as lists of numbers
    arrays = [
        part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in x
    ]
    widths = {array.shape[1:] for array in arrays}
    if len(widths) != 1:
        raise ValueError(f"All sequences have the same columns; got {sorted(map(str, widths))}.")
    return np.concatenate(arrays), [len(array) for array in arrays]
