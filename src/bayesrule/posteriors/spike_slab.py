"""Spike-and-slab posteriors: units are dropped with a fixed probability, as in dropout."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.matrices import Diagonal, DiagonalMatrix, Matrix
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian, gaussian_prior
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import EarlierPosterior, Prior, as_prior
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Local, Params


@dataclass(frozen=True)
class MaskedDraw(Point):
    """`θ = z (m + ε)`, z one or zero for each unit; without ε the masked mean (delta method).

    Gradient and curvature in m are those in θ where z = 1, and zero elsewhere. Divided by the
    probability of z = 1, their means over z are `E_q[∇ℓ | z = 1]` and `E_q[∇²ℓ | z = 1]`; Khan &
    Rue (2023), eqs 42 and 43.
    """

    posterior: SpikeSlab
    masks: Params
    offset: Params | None

    pulls = True

    def _divided(self, values: Params) -> Params:
        """`z values / π`."""
        return {k: v * (self.masks[k] / self.posterior.kept(k)) for k, v in values.items()}

    @property
    def position(self) -> Params:
        """`z θ / π`: over draws its mean is m."""
        return self._divided(self.coordinates)

    def price(self, gradient: Params) -> Matrix:
        if self.offset is None:
            raise TypeError("Price's estimate needs draws of the slabs: use Draws() for Masks().")
        precision = self.posterior.precision.values
        return DiagonalMatrix({k: precision[k] * v * gradient[k] for k, v in self.offset.items()})

    def pulled(self, local: Local, pull: Pull) -> Local:
        gradient = self._divided(local.gradient)
        if local.curvature is None:
            return replace(local, gradient=gradient)
        curvature = DiagonalMatrix(self._divided(local.curvature.diagonal()))
        return replace(local, gradient=gradient, curvature=curvature)


@dataclass(frozen=True, repr=False)
class SpikeSlab(Posterior):
    """`q(θ_u) = π N(m_u, diag(s_u)⁻¹) + (1 − π) δ(θ_u)` for each unit u; Khan & Rue (2023), eq. 41.

    A unit holds the weights of one input of a layer: a column of a weight matrix, or the part of a
    kernel for one input channel. Biases, and the weights named in `whole`, have no spike. The spike
    is exactly at zero, the limit of a narrow Gaussian, so a zero weight is one that was dropped;
    densities are relative to a point mass at zero plus Lebesgue measure.

    - `slab`, `precision`: m and s, named and shaped as the weights; `keep`: π.
    """

    slab: Params
    precision: DiagonalMatrix
    keep: float
    whole: tuple[str, ...] = ()

    must_track = True

    def kept(self, name: str) -> float:
        """The probability that a unit of a weight is kept: 1 if it has no spike."""
        return self.keep if name not in self.whole else 1.0

    @derived
    def mean(self) -> Params:
        return {name: self.kept(name) * value for name, value in self.slab.items()}

    def variance(self) -> Params:
        slab_variance, variance = self.precision.inverse_diagonal(), {}
        for name, value in self.slab.items():
            keep = self.kept(name)
            variance[name] = keep * (slab_variance[name] + (1.0 - keep) * value.square())
        return variance

    def masks(self, generator: Generator) -> Params:
        """One or zero for each unit, shaped to multiply the weights."""
        masks = {}
        for name, value in self.slab.items():
            size = _unit_shape(value) if name not in self.whole else (1,) * value.ndim
            chance = torch.full(size, self.kept(name), dtype=value.dtype, device=value.device)
            masks[name] = torch.bernoulli(chance, generator=generator)
        return masks

    def _drawn(self, masks: Params, offset: Params | None) -> MaskedDraw:
        slab = self.slab if offset is None else vectors.add(self.slab, offset)
        return MaskedDraw({k: masks[k] * v for k, v in slab.items()}, self, masks, offset)

    def draw(self, generator: Generator) -> Point:
        masks, noise = self.masks(generator), vectors.randn_like(self.slab, generator)
        variance = self.precision.inverse_diagonal()
        return self._drawn(masks, {k: v * variance[k].sqrt() for k, v in noise.items()})

    def masked(self, generator: Generator) -> Point:
        return self._drawn(self.masks(generator), None)

    def sample(self, generator: Generator) -> Params:
        return self.draw(generator).coordinates

    def log_prob(self, params: Params) -> Tensor:
        """`log q(θ)`, a 0-d tensor; a unit whose weights are all zero was dropped."""
        parts = []
        for name, mean in self.slab.items():
            s, keep = self.precision.values[name], self.kept(name)
            logs = 0.5 * (s.log() - s * (params[name] - mean).square() - math.log(2.0 * math.pi))
            if name in self.whole:
                parts.append(logs.sum())
                continue
            dims = _within_units(mean)
            dropped = params[name].abs().amax(dims) == 0
            units = torch.where(dropped, math.log1p(-keep), math.log(keep) + logs.sum(dims))
            parts.append(units.sum())
        return torch.stack(parts).sum()

    def entropy(self, generator: Generator | None = None) -> Tensor:
        parts = []
        for name, value in self.slab.items():
            s, keep = self.precision.values[name], self.kept(name)
            slab = 0.5 * (1.0 + math.log(2.0 * math.pi) - s.log()).sum()
            units = 0 if name in self.whole else math.prod(_unit_shape(value))
            parts.append(keep * slab + units * _coin_entropy(keep))
        return torch.stack(parts).sum()

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        """The KL of the slabs, each as often as it is kept: prior and q have the same spikes."""
        prior = as_prior(prior)
        if not prior.proper:
            return self.any_tensor.new_tensor(math.inf)
        precisions = prior.diagonal(self.slab)
        pulls = prior.pulled(vectors.zeros_like(self.slab), self.slab)
        parts = []
        for name, s in self.precision.values.items():
            p = precisions[name] if isinstance(precisions, dict) else precisions
            p = torch.as_tensor(p).to(s)
            terms = p / s + pulls[name].square() / p - 1.0 + s.log() - p.log()
            parts.append(0.5 * self.kept(name) * terms.sum())
        return torch.stack(parts).sum()

    def coordinates(self) -> Gaussian:
        return Gaussian(self.slab, self.precision)

    def with_mean(self, mean: Params) -> SpikeSlab:
        return replace(self, slab=mean)

    def with_precision(self, precision: Matrix) -> tuple[SpikeSlab, None]:
        return replace(self, precision=DiagonalMatrix(precision.diagonal())), None


def _unit_shape(value: Tensor) -> tuple[int, ...]:
    """The shape of one number for each unit that multiplies the weights: (1, inputs, 1, ...)."""
    return (1, value.shape[1]) + (1,) * (value.ndim - 2)


def _within_units(value: Tensor) -> tuple[int, ...]:
    """The axes of a weight within one unit: all but that of the inputs."""
    return (0, *range(2, value.ndim))


def _coin_entropy(chance: float) -> float:
    return -sum(p * math.log(p) for p in (chance, 1.0 - chance) if p > 0)


@dataclass(frozen=True)
class SpikeSlabFamily(Family):
    """Units that are dropped with probability `1 − keep`, and Gaussian weights in all others.

    Khan & Rue (2023), sec. 4.3. `Masks(num)` evaluates the loss at masked means, as dropout does,
    `Draws(num)` at draws of the whole posterior. The paper calls s₀, the precision of the spike,
    small; it is the variance of the spike that has to be small, and here it is zero.

    - `keep`: π, the probability that a unit is kept.
    - `whole`: patterns of weights that are never dropped; biases never are.
    - `curvature`: the assumed curvature of the loss per datum before any data are seen.
    """

    keep: float = 0.9
    whole: tuple[str, ...] = ()
    curvature: float = 1.0

    structure = Diagonal()
    symmetric = False
    drops = True

    def __post_init__(self) -> None:
        if not (0.0 < self.keep <= 1.0):
            raise ValueError(
                "keep is the probability that a unit is kept, above 0 and at most 1, got "
                f"{self.keep}."
            )
        if not self.curvature >= 0:
            raise ValueError(f"The initial curvature must not be negative: {self.curvature}.")

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> SpikeSlab:
        named = [k for k in params if any(fnmatch.fnmatchcase(k, p) for p in self.whole)]
        whole = tuple(name for name, v in params.items() if v.ndim < 2 or name in named)
        first = as_prior(prior).added_to(self.first_curvature(params, weight))
        blank = SpikeSlab(params, DiagonalMatrix(first.diagonal()), self.keep, whole)
        # The posterior mean is the module's weights, so slabs are these divided by `keep`.
        slab = {name: value.detach() / blank.kept(name) for name, value in params.items()}
        return replace(blank, slab=slab)

    def prior(self, given: object, params: Params) -> Prior:
        if not isinstance(given, SpikeSlab):
            return gaussian_prior(given)
        if given.keep != self.keep:
            raise ValueError(
                f"The earlier posterior keeps units with probability {given.keep}, this family "
                f"with {self.keep}; give both the same."
            )
        return EarlierPosterior(tree.map_tensors(given.coordinates(), torch.clone))
