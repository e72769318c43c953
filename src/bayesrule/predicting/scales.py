"""A posterior's standard deviations: how close to low rank, and how noisy their gradients."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from bayesrule.posteriors import MeanField, PointBelief, Posterior, Product
from bayesrule.posteriors.tied import Rank, matrix_shape, tied_ranks
from bayesrule.tensors import vectors
from bayesrule.types import Info, Params, State


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a weight's standard deviations, in float64.

    `std`: the standard deviations as a matrix (m, n), the weight's first axis by all the others.

    >>> of_rank_one = Spectrum(torch.outer(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0, 2.0])))
    >>> of_rank_one.explained.round(decimals=6)
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
        """`γ_k² / Σ γ²`, the share of each singular value in the squared norm, (min(m, n),)."""
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
    """The same posterior with the standard deviations of each matrix truncated to a rank.

    The first k terms of the singular value decomposition of σ stay, and so do the means. Negative
    entries of the truncated σ become positive, which gives the same Gaussian; all are at least a
    millionth of the matrix's mean, so that the KL is finite. `rank` is as for `KTiedFamily`.

    The result is a `MeanField`, or a `Product` of one with weights that have no variance. A
    truncated state is for predictions, not for more steps: the rule's memory stays as it was.
    """
    if isinstance(belief, State):
        return dataclasses.replace(belief, posterior=compress(belief.posterior, rank))
    std = _standard_deviations(belief)
    for name, k in tied_ranks(std, rank).items():
        matrix = std[name].flatten(start_dim=1)
        cut = Spectrum(matrix).truncated(k).abs().clamp_min(1e-6 * matrix.double().mean())
        std[name] = cut.view(std[name].shape).to(std[name])
    mean = {name: value.clone() for name, value in belief.mean.items()}
    fixed = {name: mean.pop(name) for name in list(mean) if name not in std}
    spread = MeanField(mean, {name: value.log() for name, value in std.items()})
    if not fixed:
        return spread
    groups = {"|".join(mean): tuple(mean), "*": tuple(fixed)}
    return Product(dict(zip(groups, (spread, PointBelief(fixed)), strict=True)), groups)


def compressed_parameters(posterior: Posterior, rank: Rank = 2) -> int:
    """How many numbers describe the compressed posterior: `m n + k (m + n)` for a matrix.

    >>> zeros = {"w": torch.zeros(20, 30)}
    >>> compressed_parameters(MeanField(zeros, zeros), 2)
    700
    """
    std = _standard_deviations(posterior)
    ranks = tied_ranks(std, rank)
    scales = (
        ranks[name] * sum(matrix_shape(s) or ()) if name in ranks else s.numel()
        for name, s in std.items()
    )
    return vectors.numel(posterior.mean) + sum(scales)


def _standard_deviations(posterior: Posterior) -> Params:
    """The standard deviations of independent weights; raises for other posteriors."""
    if posterior.independent:
        return dict(posterior.std())
    raise TypeError(
        "Spectra are for beliefs with independent weights: a MeanField, a KTied or a Gaussian with "
        f"a diagonal precision, got {posterior.words()}."
    )


class SignalToNoise:
    """`E[g²] / Var[g]` of each log scale's gradient over the last steps.

    Call it with the state after each step, or pass it to `fit`; the rule must keep its gradients:
    `Elbo(keep_gradients=True)`. Swiatkowski et al. (2020), footnote 3: expectation and variance
    (over the window, divided by its length) are of each parameter, then the ratios are averaged
    over parameters, without those whose gradient did not vary. A ratio is at least 1; it is 1 where
    the gradient is noise alone.

    - `window`: the number of steps over which the moments are taken.
    - `names`: a pattern; the gradients of other tensors are not kept.

    >>> from bayesrule import Elbo, GaussianLikelihood, Learner, MeanFieldFamily, Price, Draws
    >>> learner = Learner(
    ...     torch.nn.Linear(2, 1), GaussianLikelihood(noise=1.0), num_data=8, curvature=Price(),
    ...     posterior=MeanFieldFamily(), expectation=Draws(1), rule=Elbo(keep_gradients=True),
    ... )
    >>> state, measure = learner.init(), SignalToNoise()
    >>> for _ in range(10):
    ...     state, info = learner.step(state, (torch.ones(8, 2), torch.ones(8, 1)))
    ...     measure(state, info)
    >>> sorted(measure.by_name()), measure.ratio() > 1, measure.ratio("weight") > 1
    (['bias', 'weight'], True, True)
    """

    def __init__(self, window: int = 10, names: str = "*") -> None:
        if not (isinstance(window, int) and window >= 2):
            raise ValueError(f"window is a whole number of at least 2, got {window!r}.")
        self.window, self.names = window, names
        self._gradients: deque[Params] = deque(maxlen=window)

    def __call__(self, state: State, info: Info | None = None) -> None:
        """Records the gradients of a step; `info` is not used."""
        scales = state.rule.get("gradients", {}).get("scales", {})
        if not scales:
            memory = ", ".join(state.rule) or "nothing"
            raise ValueError(
                f"The state holds no gradients of scales (its rule remembers: {memory}). Use "
                "Elbo(keep_gradients=True) with MeanFieldFamily() or KTiedFamily()."
            )
        # Copies, because the next step may overwrite the memory.
        named = _named(scales, self.names)
        self._gradients.append({name: value.detach().clone() for name, value in named.items()})

    @property
    def steps(self) -> int:
        """The number of steps in the window now."""
        return len(self._gradients)

    def ratios(self) -> Params:
        """The ratio of each parameter, in float64; NaN where its gradient did not vary."""
        if self.steps < 2:
            raise ValueError(
                f"A variance needs at least 2 steps, got {self.steps}: call this with the state "
                "after each step."
            )
        ratios = {}
        for name in self._gradients[-1]:
            window = torch.stack([step[name] for step in self._gradients]).double()
            variance = window.var(0, correction=0)
            ratio = window.square().mean(0) / variance
            ratios[name] = torch.where(variance > 0, ratio, math.nan)
        return ratios

    def by_name(self) -> dict[str, float]:
        """The mean ratio over the parameters of each tensor of `posterior.scales`."""
        return {name: float(ratio.nanmean()) for name, ratio in self.ratios().items()}

    def ratio(self, pattern: str = "*") -> float:
        """The mean ratio over all parameters whose tensor's name fits, such as "2.weight*"."""
        named = _named(self.ratios(), pattern)
        return float(torch.cat([ratio.reshape(-1) for ratio in named.values()]).nanmean())


def _named(scales: Params, pattern: str) -> Params:
    names = fnmatch.filter(scales, pattern)
    if not names:
        raise ValueError(f"No scales are named {pattern!r}. There are: {', '.join(scales)}.")
    return {name: scales[name] for name in names}
