"""Tables that stay where they are: rows are centred, in double precision, when they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Rows:
    """A table (n, d), which may be mapped from a file, less its mean (d,)."""

    table: Tensor
    shift: Tensor

    @classmethod
    def of(cls, table: Tensor) -> Rows:
        """About the mean of the table."""
        total = torch.zeros(table.shape[1], dtype=torch.float64, device=table.device)
        for part in table.split(_AT_ONCE):
            total += part.double().sum(0)
        return cls(table, total / len(table))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> int:
        return self.table.shape[1]

    def __getitem__(self, which: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.table[which.to(self.table.device)], self.shift)

    def centred(self) -> Tensor:
        """All of them, (n, d)."""
        return self.table.double() - self.shift

    def split(self, size: int) -> Iterator[Tensor]:
        """One piece after another, centred."""
        for part in self.table.split(size):
            yield part.double() - self.shift

    def covariance(self) -> Tensor:
        """(d, d), with so little added that it has an inverse."""
        total = torch.zeros(
            self.columns, self.columns, dtype=torch.float64, device=self.shift.device
        )
        for part in self.split(_AT_ONCE):
            total += part.T @ part
        found = total / max(len(self) - 1, 1)
        own = found.diagonal()
        # A billionth of each column's own variance keeps copies of columns apart.
        little = torch.where(own > 0, 1e-9 * own, 1e-12 * (own.mean() + 1e-12))
        return found + little.diag()
