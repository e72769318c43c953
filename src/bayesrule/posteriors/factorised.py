"""Independent Gaussians whose standard deviations follow from free parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from bayesrule.matrices import DiagonalMatrix, Matrix
from bayesrule.posteriors._base import ElboTerms, Family, Free
from bayesrule.posteriors.gaussian import FanIn, Gaussian, Normal, gaussian_of, gaussian_prior
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import Prior, as_prior
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Number, Params

SHARE = 0.05
"""Initial standard deviations as a share of the prior's: about e⁻³."""

_SMALLEST, _LARGEST = 1e-12, 1e6


@dataclass(frozen=True)
class StdSlope(DiagonalMatrix):
    """`∂E[ℓ]/∂σ = σ E[∇²ℓ]`, which the ELBO's gradient needs, in place of the curvature."""

    def plus(self, other: DiagonalMatrix) -> StdSlope:
        return StdSlope(vectors.add(self.values, other.values))

    def slope(self, std: Params) -> Params:
        return self.values

    def only(self, names: tuple[str, ...]) -> StdSlope:
        return StdSlope({name: self.values[name] for name in names if name in self.values})

    def summed_over_draws(self, drawn: Params) -> StdSlope:
        values = self.values.items()
        return StdSlope({k: v.sum(1) if v.ndim == drawn[k].ndim else v for k, v in values})


class ScaleMatrix(DiagonalMatrix):
    """The precision `diag(1/σ²)` of given standard deviations, computed when it is first read."""

    several_draws = True

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
    """The part of a weighted KL that depends on σ: `Σ ½ precision σ² − weight log σ`.

    Both are numbers, or 0-d tensors where steps are replayed; the precision may be one for each
    weight.
    """

    weight: Number
    precision: float | Tensor | Params

    @classmethod
    def of(cls, prior: Prior, weight: Number, like: Params) -> ScaleKL:
        """The part of `weight KL(q ‖ prior)`."""
        precision = prior.diagonal(like)
        if isinstance(precision, dict):
            return cls(weight, vectors.scale({name: precision[name] for name in like}, weight))
        return cls(weight, weight * precision)

    def added_(self, slope: Params, std: Params) -> Params:
        """The slope in `log σ` plus that of the KL: `slope + precision σ² − weight`, in place."""
        if isinstance(self.precision, dict):
            squares = vectors.mul({name: std[name] for name in slope}, std)
            vectors.add_(slope, vectors.mul_(squares, self.precision))
        else:
            vectors.addcmul_(slope, std, std, self.precision)
        return vectors.shift_(slope, -self.weight)

    def tensors(self, like: Tensor) -> Callable[[str], tuple[Tensor, Tensor]]:
        """Weight and precision as tensors, by a parameter's name, for fused operations."""
        by_name = self.precision if isinstance(self.precision, dict) else {}
        shared = 0.0 if isinstance(self.precision, dict) else self.precision
        weight, precision = (
            value if isinstance(value, Tensor) else like.new_full((), value)
            for value in (self.weight, shared)
        )
        return lambda name: (weight, by_name.get(name, precision))


@dataclass(frozen=True)
class IndependentDraw(Point):
    """A draw of independent weights: `noise = (θ − mean) / σ`."""

    posterior: Factorised
    noise: Params

    @classmethod
    def of(cls, posterior: Factorised, noise: Params) -> IndependentDraw:
        """The draw `mean + σ noise`."""
        return cls(posterior.moved(noise), posterior, noise)

    def price(self, gradient: Params) -> StdSlope:
        return StdSlope(vectors.mul_(self.noise, gradient))

    def mirrored(self) -> IndependentDraw:
        return self.of(self.posterior, vectors.scale(self.noise, -1.0))


class Factorised(Normal):
    """`q(θ) = Π N(mean, std²)` with `log std` a function of the free parameters `scales`."""

    scales: Params
    independent = True

    @abstractmethod
    def _std(self) -> Params:
        """Computes the standard deviations."""

    def std(self) -> Params:
        """The standard deviations of the weights, which callers must not change.

        They are kept until the scales change in place, since a step needs them several times.
        """
        versions = tuple(value._version for value in self.scales.values())
        if self.__dict__.get("_kept", (None, {}))[0] != versions:
            self.__dict__["_kept"] = versions, self._std()
        return self.__dict__["_kept"][1]

    @abstractmethod
    def scale_gradients(self, slope: Params, share: Number, kl: ScaleKL) -> Params:
        """The gradient of `share (F + kl)` in the free parameters of the scales.

        `slope` is `∂F/∂σ`, which may be overwritten. In a stack, each net may have its own share.
        """

    def free(self) -> Free:
        return {"mean": self.mean, "scales": self.scales}

    def free_gradients(self, terms: ElboTerms) -> Free:
        assert terms.curvature is not None
        std = self.std()
        slope, kl = terms.curvature.slope(std), ScaleKL.of(terms.prior, terms.kl_weight, std)
        scales = self.scale_gradients(slope, terms.share, kl)
        return {"mean": terms.mean_gradient(self.mean), "scales": scales}

    @derived
    def precision(self) -> Matrix:
        return ScaleMatrix(self.std())

    def noise(self, generator: Generator) -> Params:
        """A draw of `(θ − mean) / σ`."""
        return vectors.randn_like(self.std(), generator)

    def moved(self, noise: Params) -> Params:
        """The weights `mean + σ noise`."""
        return vectors.addcmul(self.mean, noise, self.std())

    def sample(self, generator: Generator) -> Params:
        return self.moved(self.noise(generator))

    def draw(self, generator: Generator) -> Point:
        return IndependentDraw.of(self, self.noise(generator))

    def draw_several(self, generators: Generators, draws: int) -> Point:
        noise = vectors.several_randn_like(self.mean, draws, generators)
        std = self.std()
        weights = {
            name: torch.addcmul(mean.unsqueeze(1), noise[name], std[name].unsqueeze(1))
            for name, mean in self.mean.items()
        }
        return IndependentDraw(weights, self, noise)

    def fault(self) -> str | None:
        """What is wrong with the scales of a weight: collapsed, exploded, or not numbers.

        No useful posterior has a standard deviation below 1e-12 or above 1e6.
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

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        """`Σ ½[P(σ² + (μ − μ₀)²) − 1 − log Pσ²]`, P the prior's precisions."""
        prior = as_prior(prior)
        if not prior.proper:
            return self.any_tensor.new_tensor(math.inf)
        if prior.earlier is not None and not prior.earlier.independent:
            return super().kl(prior)
        gaussian, parts = gaussian_of(prior, self.mean), []
        for name, s in self.std().items():
            m = self.mean[name] - gaussian.mean[name]
            precision = gaussian.precision.only((name,)).diagonal()[name]
            terms = precision * (s * s + m * m) - 1.0 - torch.log(s * s * precision)
            parts.append(0.5 * terms.sum(dtype=torch.float64))
        return torch.stack(parts).sum().to(self.any_tensor.dtype)

    def kept(self) -> Gaussian:
        mean = {name: value.clone() for name, value in self.mean.items()}
        return Gaussian(mean, DiagonalMatrix(vectors.reciprocal(self.variance())))


@dataclass(frozen=True, repr=False)
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

    def scale_gradients(self, slope: Params, share: Number, kl: ScaleKL) -> Params:
        std = self.std()
        return vectors.scale_(kl.added_(vectors.mul_(slope, std), std), share)


def first_std(params: Params, spread: float | FanIn, prior: Prior | float) -> Params:
    """Initial standard deviations: a share of the prior's, or by fan-in."""
    if isinstance(spread, FanIn):
        return {k: v.rsqrt() for k, v in spread.precision(params).items()}
    if not spread > 0:
        raise ValueError(f"spread must be positive, got {spread}.")
    precision = as_prior(prior).diagonal(params)
    if isinstance(precision, dict):
        return {k: spread * precision[k].rsqrt() for k in params}
    width = max(precision, 1e-12) ** -0.5 if precision > 0 else 1.0
    return {k: torch.full_like(v, spread * width) for k, v in params.items()}


class FreeScales(Family):
    """A family of independent Gaussians whose scales are learned as free parameters."""

    has_mean = True
    has_scales = True
    independent = True
    linearisable = True

    def prior(self, given: object, params: Params) -> Prior:
        return gaussian_prior(given)

    def counted(self, params: Params) -> int:
        return vectors.numel(params)

    stack_obstacle = replay_obstacle = None


@dataclass(frozen=True)
class MeanFieldFamily(FreeScales):
    """Independent Gaussians, each with its own standard deviation, which is learned.

    - `spread`: initial standard deviations, as a share of the prior's or `FanIn()`.
    """

    spread: float | FanIn = SHARE

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> MeanField:
        mean = {name: value.detach().clone() for name, value in params.items()}
        std = first_std(mean, self.spread, prior)
        return MeanField(mean, {name: value.log_() for name, value in std.items()})
