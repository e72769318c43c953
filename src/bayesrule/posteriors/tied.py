"""The k-tied Normal: independent Gaussians whose standard deviations are a low-rank product."""

from __future__ import annotations

import fnmatch
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.posteriors.factorised import SHARE, Factorised, FreeScales, ScaleKL, first_std
from bayesrule.posteriors.gaussian import FanIn
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import seeds, vectors
from bayesrule.tensors.cuda_streams import side_by_side
from bayesrule.types import Number, Params

# From this many entries on, and up to this rank, a CPU forms `U Vᵀ` column by column.
_WIDE, _FEW = 1 << 15, 3
Rank = int | Mapping[str, int | None]
"""The rank of all matrices, or of those that match a pattern; None: not tied."""


@dataclass(frozen=True, repr=False)
class KTied(Factorised):
    """`q(W) = N(mean, (U Vᵀ)²)`, squared elementwise; Swiatkowski et al. (2020), eq. 8.

    `scales` holds `log Uᵀ` (k, m) as "NAME.u" and `log Vᵀ` (k, n) as "NAME.v" for a tied weight,
    and `log σ` as "NAME" for any other. A weight of more than two axes counts as a matrix of its
    first axis by all the others.

    >>> scales = {"w.u": torch.zeros(2, 3), "w.v": torch.zeros(2, 4), "b": torch.zeros(3)}
    >>> q = KTied({"w": torch.zeros(3, 4), "b": torch.zeros(3)}, scales)
    >>> q.variance()["w"][0], q.num_parameters
    (tensor([4., 4., 4., 4.]), 32)
    """

    mean: Params
    scales: Params

    def _std(self) -> Params:
        free = dict(zip(self.scales, torch._foreach_exp(list(self.scales.values())), strict=True))
        # Kept as long as the standard deviations are.
        self.__dict__["_factors"], self.__dict__["_matrices"] = free, {}
        tied = side_by_side(self._product, [name for name in self.mean if f"{name}.u" in free])
        return {k: tied[k] if k in tied else free[k] for k in self.mean if k in tied or k in free}

    def scale_gradients(self, slope: Params, share: Number, kl: ScaleKL) -> Params:
        """`∂F/∂log u = (S V) ∘ u` and `∂F/∂log v = (Sᵀ U) ∘ v` with `S = ∂F/∂σ`."""
        std, free = self.std(), self.__dict__["_factors"]
        untied = {name: value for name, value in slope.items() if name in free}
        gradients = kl.added_(vectors.mul_(untied, std), std) if untied else {}
        kl_terms = kl.tensors(next(iter(slope.values())))

        def of_factors(name: str) -> tuple[Tensor, Tensor]:
            # The KL adds precision σ − weight / σ to the slope.
            total, sigma = slope[name], std[name]
            weight, precision = kl_terms(name)
            total.addcdiv_(weight, sigma, value=-1.0).addcmul_(precision, sigma)
            return self._sums(name, total)

        tied = [name for name in slope if name not in free]
        sums: Params = {}
        for name, (for_u, for_v) in side_by_side(of_factors, tied).items():
            sums[f"{name}.u"], sums[f"{name}.v"] = for_u, for_v
        if sums:
            # Factors come first, so that gradients lie in memory as they do, as optimisers ask.
            gradients |= vectors.mul({name: free[name] for name in sums}, sums)
        vectors.scale_(gradients, share)
        return {name: gradients[name] for name in self.scales}

    def _sums(self, name: str, slope: Tensor) -> tuple[Tensor, Tensor]:
        """`Vᵀ Mᵀ` and `Uᵀ M` for a slope M as a matrix; a few long rows are faster than columns."""
        u, v, shape, order = self.__dict__["_matrices"][name]
        if order is None:
            matrix = slope.reshape(shape)
            return v @ matrix.mT, u @ matrix
        matrix = slope.permute(order).reshape(shape)
        return v @ matrix.mT, _columns_from(u @ matrix, self.mean[name].shape, order)

    def _product(self, name: str) -> Tensor:
        free, mean, order = self.__dict__["_factors"], self.mean[name], self._order(name)
        u, v = free[f"{name}.u"], free[f"{name}.v"]
        if order is not None:
            v = _columns_to(v, mean.shape, order)
        product = _outer(u, v)
        self.__dict__["_matrices"][name] = u, v, product.shape, order
        return (
            product.view(mean.shape) if order is None else vectors.laid_out(product.view(-1), mean)
        )

    def _order(self, name: str) -> list[int] | None:
        """The order of a weight's axes in memory, in which σ is stored too; None if row-major."""
        # In a stack of nets, each net has a row.
        order = vectors.in_memory(self.mean[name]) if self.scales[f"{name}.u"].ndim == 2 else None
        return order if order and order[0] == 0 else None


def _columns_to(v: Tensor, shape: torch.Size, order: list[int]) -> Tensor:
    """`Vᵀ`, which has a number for each column of the matrix, for another order of axes."""
    return v.view(-1, *shape[1:]).permute(0, *order[1:]).reshape(v.shape)


def _columns_from(v: Tensor, shape: torch.Size, order: list[int]) -> Tensor:
    """The inverse of `_columns_to`."""
    in_memory = [shape[axis] for axis in order[1:]]
    return v.reshape(-1, *in_memory).permute(vectors.inverse(order)).reshape(v.shape)


def _outer(u: Tensor, v: Tensor) -> Tensor:
    """`U Vᵀ` from `Uᵀ` and `Vᵀ`."""
    if u.is_cuda or u.ndim > 2 or len(u) > _FEW or u.shape[1] * v.shape[1] < _WIDE:
        return u.mT @ v
    # Matrix products are slow for so few columns.
    (first, *others), (row, *rows) = u.unsqueeze(-1).unbind(), v.unbind()
    product = first * row
    for column, row in zip(others, rows, strict=True):
        product.addcmul_(column, row)
    return product


def matrix_shape(weight: Tensor) -> tuple[int, int] | None:
    """The rows and columns of a weight, the first axis by all the others; None for a vector.

    Matrices of one row or one column count as vectors: tying them would save nothing.
    """
    if weight.ndim < 2:
        return None
    rows, columns = weight.shape[0], math.prod(weight.shape[1:])
    return (rows, columns) if min(rows, columns) > 1 else None


def tied_ranks(params: Params, rank: Rank) -> dict[str, int]:
    """The rank of each tied matrix; of several patterns the first match counts.

    >>> tied_ranks({"a.weight": torch.zeros(5, 4), "a.bias": torch.zeros(5)}, 2)
    {'a.weight': 2}
    """
    shapes = {k: shape for k, v in params.items() if (shape := matrix_shape(v)) is not None}
    patterns: Mapping[str, int | None] = rank if isinstance(rank, Mapping) else {"*": rank}
    if isinstance(rank, Mapping):
        _check_patterns(patterns, shapes, params)
    chosen = {
        name: next((k for p, k in patterns.items() if fnmatch.fnmatchcase(name, p)), None)
        for name in shapes
    }
    for name, k in chosen.items():
        _check_rank(name, k, shapes[name])
    return {name: k for name, k in chosen.items() if k is not None}


def _check_patterns(
    patterns: Mapping[str, int | None], shapes: Mapping[str, object], params: Params
) -> None:
    for pattern, rank in patterns.items():
        among = params if rank is None else shapes
        if not any(fnmatch.fnmatchcase(name, pattern) for name in among):
            kind = "weight" if rank is None else "matrix with standard deviations"
            raise ValueError(
                f"No {kind} is named {pattern!r}, which has rank {rank}. There are: "
                f"{', '.join(among) or 'none'}."
            )


def _check_rank(name: str, rank: int | None, shape: tuple[int, int]) -> None:
    if rank is None:
        return
    if not (isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1):
        raise ValueError(f"A rank is a whole number of at least 1 or None, got {rank!r}.")
    if rank > min(shape):
        raise ValueError(
            f"Rank {rank} is too large for {name!r}, a {shape[0]} × {shape[1]} matrix: it may have "
            f"at most {min(shape)}. Take a smaller rank, or rank={{{name!r}: None, '*': {rank}}} "
            "to give each of its weights a standard deviation of its own."
        )


@dataclass(frozen=True)
class KTiedFamily(FreeScales):
    """Independent Gaussians with `σ = U Vᵀ` for each matrix: `k (m + n)` numbers, not `m n`.

    Linear layers are tied as stored, (out, in), convolutions as out × (in · height · width), LSTM
    and GRU kernels over their concatenated gates. Vectors (biases, norms, matrices of one row or
    one column) have a standard deviation for each number.

    - `rank`: k, or k by name, such as `{"conv*": None, "*": 2}`; weights that have no rank or match
      no pattern are not tied.
    - `spread`: as for `MeanFieldFamily`.
    - `jitter`: b in the initial `log u, log v ~ N(½(log(σ̄/k) − b²), b²)`, which give σ the mean
      that `spread` asks for; columns that start equal would stay equal. Draws are seeded by the
      names.
    """

    rank: Rank = 2
    spread: float | FanIn = SHARE
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not (self.jitter > 0 and math.isfinite(self.jitter)):
            raise ValueError(f"jitter must be positive, got {self.jitter}.")

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> KTied:
        mean = {name: value.detach().clone() for name, value in params.items()}
        std = first_std(mean, self.spread, prior)
        ranks = tied_ranks(std, self.rank)
        scales: Params = {}
        for name, value in std.items():
            if name in ranks:
                scales[f"{name}.u"], scales[f"{name}.v"] = self._factors(name, value, ranks[name])
            else:
                scales[name] = value.log()
        return KTied(mean, scales)

    def _factors(self, name: str, std: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """The initial `log U` and `log V`, with `E[U Vᵀ]` the mean of std."""
        shape = matrix_shape(std)
        assert shape is not None
        level = 0.5 * (math.log(float(std.mean()) / rank) - self.jitter**2)
        source = seeds.generator("cpu", zlib.crc32(name.encode()), 0)
        u, v = (torch.randn(rank, n, dtype=torch.float64, generator=source) for n in shape)
        return u.mul_(self.jitter).add_(level).to(std), v.mul_(self.jitter).add_(level).to(std)
