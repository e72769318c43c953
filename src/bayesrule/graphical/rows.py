"""Tables that stay where they are: rows are centred, in float64, when they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Rows:
    """A table (n, d), which may be mapped from a file, less a vector `shift` (d,)."""

    table: Tensor
    shift: Tensor

    @classmethod
    def of(cls, table: Tensor) -> Rows:
        """The table less its mean."""
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
        """All rows less the shift, (n, d)."""
        return self.table.double() - self.shift

    def split(self, size: int) -> Iterator[Tensor]:
        """Chunks of centred rows."""
        for part in self.table.split(size):
            yield part.double() - self.shift

    def covariance(self) -> Tensor:
        """The covariance (d, d), with enough added to its diagonal to be invertible."""
        total = torch.zeros(
            self.columns, self.columns, dtype=torch.float64, device=self.shift.device
        )
        for part in self.split(_AT_ONCE):
            total += part.T @ part
        covariance = total / max(len(self) - 1, 1)
        variance = covariance.diagonal()
        # A billionth of each column's variance makes equal columns invertible too.
        jitter = torch.where(variance > 0, 1e-9 * variance, 1e-12 * (variance.mean() + 1e-12))
        return covariance + jitter.diag()
