"""How close to low rank a belief's standard deviations are, and beliefs cut to a low rank."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from bayesrule.posteriors import MeanField, PointBelief, Posterior, Product
from bayesrule.posteriors.tied import Rank, matrix_shape, tied_ranks
from bayesrule.tensors import vectors
from bayesrule.types import Params, State

_FLOOR = 1e-6
"""The least standard deviation that truncation leaves, as a share of the matrix's mean one."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a weight's standard deviations; all is computed in float64.

    `std`: the standard deviations as a matrix (m, n), the weight's first axis by all the others.

    >>> one = Spectrum(torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0, 2.0])))
    >>> one.explained.round(decimals=6)
    tensor([1., 0.], dtype=torch.float64)
    """

    std: Tensor

    @cached_property
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.linalg.svd(self.std.double(), full_matrices=False)

    @property
    def singular_values(self) -> Tensor:
        """`γ`, the largest first, (min(m, n),)."""
        return self._svd[1]

    @property
    def explained(self) -> Tensor:
        """`γ_k² / Σ γ²`, the share of the variance of each singular value, (min(m, n),)."""
        squares = self.singular_values.square()
        return squares / squares.sum()

    @property
    def cumulative(self) -> Tensor:
        """The share of the first k singular values together, (min(m, n),)."""
        return self.explained.cumsum(0)

    def truncated(self, rank: int) -> Tensor:
        """The closest matrix of a rank, (m, n); its entries may be negative."""
        left, values, right = self._svd
        if not 1 <= rank <= len(values):
            raise ValueError(f"rank must be from 1 to {len(values)}, got {rank}.")
        return (left[:, :rank] * values[:rank]) @ right[:rank]


def explained_variance(weight: Tensor) -> Tensor:
    """`γ_k² / Σ γ²` of any weight as a matrix, such as a posterior mean, to compare with."""
    squares = torch.linalg.svdvals(weight.double().flatten(start_dim=1)).square()
    return squares / squares.sum()


def spectrum(posterior: Posterior) -> dict[str, Spectrum]:
    """The spectrum of the standard deviations of each matrix, by the weight's name.

    Convolutions are matrices too, out × (in · height · width). The posterior's weights must be
    independent. Swiatkowski et al. (2020), sec. 2.3.
    """
    std = _standard_deviations(posterior)
    matrices = {name: s for name, s in std.items() if matrix_shape(s) is not None}
    return {name: Spectrum(s.flatten(start_dim=1)) for name, s in matrices.items()}


@overload
def compress(belief: State, rank: Rank = 2) -> State: ...
@overload
def compress(belief: Posterior, rank: Rank = 2) -> MeanField | Product: ...
def compress(belief: State | Posterior, rank: Rank = 2) -> State | MeanField | Product:
    """The same belief with the standard deviations of each matrix truncated to a rank.

    The first k terms of the singular value decomposition of σ stay, and so do the means. Entries of
    the truncated σ may be negative; their absolute values give the same Gaussian. They are at least
    a millionth of the matrix's mean, so that the KL is finite. `rank` is as for `KTiedFamily`.

    The result is a `MeanField`, which holds all entries of σ; `compressed_parameters` says how many
    numbers the truncated belief needs. Weights without a variance are beside it in a `Product`. A
    truncated state is for predictions, not for more steps: the rule's memory stays as it was.
    """
    if isinstance(belief, State):
        return dataclasses.replace(belief, posterior=compress(belief.posterior, rank))
    std = _standard_deviations(belief)
    for name, k in tied_ranks(std, rank).items():
        std[name] = _cut(std[name], k)
    mean = {name: value.clone() for name, value in belief.mean.items()}
    known = {name: mean.pop(name) for name in list(mean) if name not in std}
    spread = MeanField(mean, {name: value.log() for name, value in std.items()})
    if not known:
        return spread
    groups = {"|".join(mean): tuple(mean), "*": tuple(known)}
    return Product(dict(zip(groups, (spread, PointBelief(known)), strict=True)), groups)


def compressed_parameters(posterior: Posterior, rank: Rank = 2) -> int:
    """How many numbers describe the belief that `compress` gives: `m n + k (m + n)` for a matrix.

    >>> one = {"w": torch.zeros(20, 30)}
    >>> compressed_parameters(MeanField(one, one), 2)
    700
    """
    std = _standard_deviations(posterior)
    ranks = tied_ranks(std, rank)
    scales = (
        ranks[name] * sum(matrix_shape(s) or ()) if name in ranks else s.numel()
        for name, s in std.items()
    )
    return vectors.numel(posterior.mean) + sum(scales)


def _cut(std: Tensor, rank: int) -> Tensor:
    matrix = std.flatten(start_dim=1)
    least = _FLOOR * matrix.double().mean()
    return Spectrum(matrix).truncated(rank).abs().clamp_min(least).view(std.shape).to(std)


def _standard_deviations(posterior: Posterior) -> Params:
    """The standard deviations of independent weights; other beliefs are refused."""
    if posterior.independent:
        return dict(posterior.std())
    raise TypeError(
        "Spectra are for beliefs with independent weights: a MeanField, a KTied or a Gaussian with "
        f"a diagonal precision, got {posterior.words()}."
    )
