"""Rows with missing values (NaN), which each Gaussian fills in by its conditional."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical import gaussians
from bayesrule.graphical.gaussians import Gaussians

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Filled:
    """Rows with the same gaps, filled by each of K Gaussians.

    The missing values are nodes with `q(x_m | k) = N(m_m − Λ_mm⁻¹ Λ_mo (x_o − m_o), Λ_mm⁻¹)`.
    `values` (K, n, d) are the filled rows, `spread` (K, d, d) is Λ_mm⁻¹ for missing columns and 0
    elsewhere, and `constant` (K,) the log integral over the missing values.
    """

    values: Tensor
    spread: Tensor
    constant: Tensor

    @classmethod
    def by(cls, seen: Gaussians, x: Tensor, hidden: Tensor) -> Filled:
        """Fills rows x (n, d), all of which lack the columns `hidden` (d,)."""
        precision = seen.root @ seen.root.mT
        inner = precision[:, hidden][:, :, hidden]
        factor = torch.linalg.cholesky(inner)
        gap = torch.where(hidden, 0.0, x).unsqueeze(0) - torch.where(
            hidden, 0.0, seen.mean[:, None]
        )
        pull = precision[:, hidden] @ gap.mT
        values = gap.clone()
        values[:, :, hidden] = -torch.cholesky_solve(pull, factor).mT
        spread = torch.zeros_like(precision)
        spread[:, hidden.unsqueeze(1) & hidden] = torch.cholesky_inverse(factor).flatten(1)
        halves = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * _LOG_2PI * int(hidden.sum()) - halves
        return cls(values + seen.mean.unsqueeze(1), spread, constant)

    def log_prob(self, seen: Gaussians) -> Tensor:
        """`log p(x_o | k)`, (n, K), with the missing values integrated out."""
        white = (self.values - seen.mean.unsqueeze(1)) @ seen.root
        return (seen.constant + self.constant) - 0.5 * white.square().sum(-1).T

    def said(self, shares: Tensor, floor: float) -> Natural:
        """The messages of these rows, with expected squares of missing values."""
        counts, weighted = shares.sum(0), self.values * shares.T.unsqueeze(-1)
        eye = torch.eye(self.values.shape[-1], dtype=shares.dtype, device=shares.device)
        second = weighted.mT @ self.values + counts[:, None, None] * (self.spread + floor * eye)
        return weighted.sum(1), -0.5 * counts, -0.5 * second, 0.5 * counts


def log_prob(seen: Gaussians, x: Tensor) -> Tensor:
    """`log p(x_o | k)` of the observed values of each row, (n, K); 0 for empty rows."""
    log_probs = x.new_zeros(len(x), len(seen.mean))
    for rows, hidden in _patterns(x):
        if bool(hidden.any()):
            log_probs[rows] = Filled.by(seen, x[rows], hidden).log_prob(seen)
        else:
            log_probs[rows] = seen.log_prob(x[rows])
    return log_probs


def said(seen: Gaussians, x: Tensor, shares: Tensor, floor: float) -> Natural:
    """The messages of rows with gaps to K nodes; empty rows send none."""
    total = gaussians.said(x[:0], shares[:0])
    for rows, hidden in _patterns(x):
        part, part_shares = x[rows], shares[rows]
        if bool(hidden.any()):
            messages = Filled.by(seen, part, hidden).said(part_shares, floor)
        else:
            messages = gaussians.said(part, part_shares, floor)
        total = tuple(a + b for a, b in zip(total, messages, strict=True))
    return total


def filled(seen: Gaussians, x: Tensor, shares: Tensor) -> Tensor:
    """Rows with their gaps filled by the mean over components, (n, d)."""
    values = shares @ seen.mean
    for rows, hidden in _patterns(x):
        if not bool(hidden.any()):
            continue
        values[rows] = torch.einsum(
            "nk,knd->nd", shares[rows], Filled.by(seen, x[rows], hidden).values
        )
    return torch.where(x.isnan(), values, x)


def _patterns(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of each pattern of gaps, with its mask (d,); leaves out empty rows."""
    hidden = x.isnan()
    if not bool(hidden.any()):
        yield torch.arange(len(x), device=x.device), hidden[0]
        return
    kinds, which = hidden.unique(dim=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        if not bool(kind.all()):
            yield (which == number).nonzero()[:, 0], kind
