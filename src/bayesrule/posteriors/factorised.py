"""Independent Gaussians whose standard deviations follow from free parameters."""

from __future__ import annotations

import fnmatch
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from bayesrule.matrices import DiagonalMatrix, Matrix, SubsetMatrix
from bayesrule.posteriors._base import Family
from bayesrule.posteriors.gaussian import FanIn, Normal
from bayesrule.tensors import vectors
from bayesrule.types import Params

SHARE = 0.05
"""First standard deviations as a share of the prior's: about e⁻³."""

_SMALLEST, _LARGEST = 1e-12, 1e6


@dataclass(frozen=True)
class StdSlope(DiagonalMatrix):
    """`∂E[ℓ]/∂σ = σ E[∇²ℓ]`, what the ELBO's gradient needs, in the place of the curvature."""

    def plus(self, other: DiagonalMatrix) -> StdSlope:
        return StdSlope(vectors.add(self.values, other.values))


class ScaleMatrix(DiagonalMatrix):
    """The precision `diag(1/σ²)` of known standard deviations, worked out where it is asked for."""

    def __init__(self, std: Params) -> None:
        self.__dict__["std"] = std

    @cached_property
    def values(self) -> Params:
        std = self.__dict__["std"]
        return vectors.reciprocal(vectors.mul(std, std))

    def inverse_diagonal(self) -> Params:
        std = self.__dict__["std"]
        return vectors.mul(std, std)

    def inv_sqrt(self, noise: Params) -> Params:
        return vectors.mul(noise, self.__dict__["std"])


class ScaleKL(NamedTuple):
    """What a weighted KL from the prior has of σ: `Σ ½ precision σ² − weight log σ`.

    Numbers, or 0-d tensors where steps are replayed.
    """

    weight: float | Tensor
    precision: float | Tensor

    def added_(self, slope: Params, std: Params) -> Params:
        """The slope in `log σ` with that of the KL: `slope + precision σ² − weight`, in place."""
        return vectors.shift_(vectors.addcmul_(slope, std, std, self.precision), -self.weight)

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both as 0-d tensors, for calls that do more at once than those that take numbers."""
        weight, precision = (
            one if isinstance(one, Tensor) else like.new_full((), one) for one in self
        )
        return weight, precision


class Factorised(Normal):
    """`q(θ) = Π N(mean, std²)` with `log std` a function of the free parameters `scales`.

    Weights without a standard deviation are held as known: they have a mean only.
    """

    scales: Params

    @abstractmethod
    def _std(self) -> Params:
        """The standard deviations, worked out."""

    def std(self) -> Params:
        """The standard deviations of the weights that have one; they are not to be changed.

        They are kept until the scales change in their place: a step needs them several times.
        """
        versions = tuple(value._version for value in self.scales.values())
        if self.__dict__.get("_known", (None, {}))[0] != versions:
            self.__dict__["_known"] = versions, self._std()
        return dict(self.__dict__["_known"][1])

    @abstractmethod
    def pull(self, slope: Params, share: float | Tensor = 1.0, kl: ScaleKL | None = None) -> Params:
        """The gradient of `share (F + kl)` in the free parameters.

        `slope` is `∂F/∂σ`, which may be used up. Of many nets, each may have a share of its own.
        """

    @property
    def num_parameters(self) -> int:
        return vectors.numel(self.mean) + vectors.numel(self.scales)

    @property
    def precision(self) -> Matrix:  # type: ignore[override]
        std = self.std()
        inner = ScaleMatrix(std)
        return inner if len(std) == len(self.mean) else SubsetMatrix(inner, tuple(std))

    def variance(self) -> Params:
        std = self.std()
        return {
            k: std[k].square() if k in std else torch.zeros_like(v) for k, v in self.mean.items()
        }

    def noise(self, generator: Generator) -> Params:
        """A draw of `(θ − mean) / σ` of the weights that have a standard deviation."""
        return vectors.randn_like(self.std(), generator)

    def moved(self, noise: Params) -> Params:
        """The weights that such a draw stands for."""
        std, mean = self.std(), self.mean
        if len(noise) == len(mean):
            return vectors.addcmul(mean, noise, std)
        return {
            k: torch.addcmul(v, noise[k], std[k]) if k in noise else v.clone()
            for k, v in mean.items()
        }

    def sample(self, generator: Generator) -> Params:
        return self.moved(self.noise(generator))

    def offset(self, generator: Generator) -> Params:
        noise = vectors.mul_(self.noise(generator), self.std())
        if len(noise) == len(self.mean):
            return noise
        return {k: noise[k] if k in noise else torch.zeros_like(v) for k, v in self.mean.items()}

    def fault(self) -> str | None:
        """What is wrong with the scales, by the weight's name: collapsed, exploded, or not numbers.

        A standard deviation below 1e-12 or above 1e6 is no belief that anything was learned for.
        """
        for name, s in self.std().items():
            if not bool(s.isfinite().all()):
                return f"The standard deviations of {name!r} are not finite"
            low, high = (float(v) for v in s.aminmax())
            if low < _SMALLEST:
                return f"A standard deviation of {name!r} has collapsed to {low:.1e}"
            if high > _LARGEST:
                return f"A standard deviation of {name!r} has exploded to {high:.1e}"
        return None

    def _uncertain(self) -> Params:
        return {name: self.mean[name] for name in self.std()}

    def kl(self, prior_precision: float) -> Tensor:
        """`Σ ½[δ(σ² + μ²) − 1 − log δσ²]`."""
        std = self.std()
        total = torch.zeros((), dtype=torch.float64)
        for name, s in std.items():
            m = self.mean[name]
            logs = torch.log(s * s * prior_precision)
            total = total.to(s.device) + 0.5 * (prior_precision * (s * s + m * m) - 1.0 - logs).sum(
                dtype=torch.float64
            )
        return total.to(next(iter(self.mean.values())).dtype)


@dataclass(frozen=True)
class MeanField(Factorised):
    """Every weight has its own standard deviation; `scales` are their logarithms.

    >>> q = MeanField({"w": torch.zeros(2)}, {"w": torch.zeros(2)})
    >>> q.variance()["w"], q.num_parameters
    (tensor([1., 1.]), 4)
    """

    mean: Params
    scales: Params

    def _std(self) -> Params:
        return dict(zip(self.scales, torch._foreach_exp(list(self.scales.values())), strict=True))

    def pull(self, slope: Params, share: float | Tensor = 1.0, kl: ScaleKL | None = None) -> Params:
        std = self.std()
        slope = vectors.mul_(slope, std)
        return vectors.scale_(slope if kl is None else kl.added_(slope, std), share)


def first_std(params: Params, spread: float | FanIn, prior_precision: float) -> Params:
    """First standard deviations: a share of the prior's, or by fan-in."""
    if isinstance(spread, FanIn):
        return {k: v.rsqrt() for k, v in spread.precision(params).items()}
    if not spread > 0:
        raise ValueError(f"spread must be positive, got {spread}.")
    prior = max(prior_precision, 1e-12) ** -0.5 if prior_precision > 0 else 1.0
    return {k: torch.full_like(v, spread * prior) for k, v in params.items()}


def uncertain_names(params: Params, known: Collection[str]) -> list[str]:
    """The weights that get a standard deviation; `known` are names or patterns such as "emb*"."""
    for pattern in known:
        if not fnmatch.filter(params, pattern):
            raise ValueError(
                f"No weight is named {pattern!r}, which is to be known. There are: "
                f"{', '.join(params)}."
            )
    held = {name for pattern in known for name in fnmatch.filter(params, pattern)}
    names = [name for name in params if name not in held]
    if not names:
        raise ValueError("All weights are held as known, so there is no belief to learn.")
    return names


class FreeScales(Family):
    """A family of independent Gaussians whose scales are learned as free parameters."""

    @abstractmethod
    def init(self, params: Params, *, weight: float, prior_precision: float) -> Factorised:
        """The belief before the first step."""


@dataclass(frozen=True)
class MeanFieldFamily(FreeScales):
    """Independent Gaussians, each with a standard deviation of its own that is learned.

    - `spread`: first standard deviations, as a share of the prior's or `FanIn()`.
    - `known`: names (or patterns) of weights that are point estimates, such as "embedding*".
    """

    spread: float | FanIn = SHARE
    known: tuple[str, ...] = ()

    def init(self, params: Params, *, weight: float, prior_precision: float) -> MeanField:
        mean = {name: value.detach().clone() for name, value in params.items()}
        std = first_std(mean, self.spread, prior_precision)
        names = uncertain_names(mean, self.known)
        return MeanField(mean, {name: std[name].log_() for name in names})
