"""The Gaussian belief over any structure of precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor, nn

from bayesrule.matrices import (
    DenseMatrix,
    Diagonal,
    DiagonalMatrix,
    Isotropic,
    IsotropicMatrix,
    Matrix,
    Structure,
)
from bayesrule.matrices.dense import flatten
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.tensors import tree, vectors
from bayesrule.types import Params


class Normal(Posterior):
    """`q(θ) = N(mean, precision⁻¹)`, however the precision is kept."""

    precision: Matrix

    def variance(self) -> Params:
        known = self.precision.inverse_diagonal()
        return {k: known[k] if k in known else torch.zeros_like(v) for k, v in self.mean.items()}

    def offset(self, generator: Generator) -> Params:
        return self.precision.inv_sqrt(vectors.randn_like(self.mean, generator))

    def _uncertain(self) -> Params:
        """The mean of those weights that have a variance."""
        return {name: self.mean[name] for name in self.precision.diagonal()}

    def log_prob(self, params: Params) -> Tensor:
        """`log q(θ)`, a 0-d tensor."""
        uncertain = self._uncertain()
        centred = {k: params[k] - v for k, v in uncertain.items()}
        quadratic = vectors.dot(centred, self.precision.matmul(centred))
        size = vectors.numel(uncertain)
        return 0.5 * (self.precision.logdet() - quadratic - size * math.log(2.0 * math.pi))

    def entropy(self) -> Tensor:
        size = vectors.numel(self._uncertain())
        return 0.5 * (size * (1.0 + math.log(2.0 * math.pi)) - self.precision.logdet())

    def kl(self, prior_precision: float) -> Tensor:
        if prior_precision <= 0:
            # An improper prior is infinitely far away.
            return self.precision.logdet().new_tensor(math.inf)
        uncertain = self._uncertain()
        prior = Isotropic().identity(uncertain, prior_precision)
        return self.kl_from(Gaussian(vectors.zeros_like(uncertain), prior))

    def kl_from(self, prior: Normal) -> Tensor:
        """`KL(self ‖ prior) = ½[tr(S⁻¹P) + Δᵀ P Δ − d + log|S| − log|P|]` for two Gaussians."""
        delta = {k: v - prior.mean[k] for k, v in self._uncertain().items()}
        spread = self.precision.trace_solve(prior.precision)
        shift = vectors.dot(delta, prior.precision.matmul(delta))
        logdets = self.precision.logdet() - prior.precision.logdet()
        return 0.5 * (spread + shift - vectors.numel(delta) + logdets)


@dataclass(frozen=True)
class Gaussian(Normal):
    """`q(θ) = N(mean, precision⁻¹)` with the precision in any structure.

    >>> q = Gaussian({"w": torch.zeros(3)}, Diagonal().identity({"w": torch.zeros(3)}, 4.0))
    >>> q.variance()["w"]
    tensor([0.2500, 0.2500, 0.2500])
    """

    mean: Params
    precision: Matrix

    @property
    def num_parameters(self) -> int:
        free = tree.leaves(self.precision)
        return vectors.numel(self.mean) + sum(v.numel() for _, v in free if isinstance(v, Tensor))

    def natural(self) -> tuple[Params, Matrix]:
        """`λ = (S m, −½ S)`, the second given as S itself; zero for weights taken as known."""
        return self.precision.matmul(self.mean), self.precision

    @classmethod
    def from_natural(cls, first: Params, precision: Matrix) -> Gaussian:
        """The Gaussian with `S m = first` and the given precision."""
        return cls(precision.solve(first), precision)

    def expectation(self) -> tuple[Params, Params | Tensor]:
        """`μ = (E[θ], E[θθᵀ])`, the second as far as the structure knows it.

        Isotropic: `E‖θ‖²` (0-d); diagonal: `E[θ²]` by name; dense: the matrix (P, P).
        """
        if isinstance(self.precision, IsotropicMatrix):
            spread = self.precision.size / self.precision.value
            return self.mean, vectors.dot(self.mean, self.mean) + spread
        if isinstance(self.precision, DiagonalMatrix):
            squares = vectors.mul(self.mean, self.mean)
            return self.mean, vectors.add(squares, self.precision.inverse_diagonal())
        if isinstance(self.precision, DenseMatrix):
            flat = flatten(self.mean, self.precision.shapes)
            covariance = torch.cholesky_inverse(self.precision.cholesky)
            return self.mean, torch.outer(flat, flat) + covariance
        raise TypeError(
            f"{type(self.precision).__name__} is not an exponential family, so it has no "
            "expectation parameters. Isotropic, Diagonal and Dense have."
        )

    @classmethod
    def from_expectation(cls, first: Params, second: Params | Tensor) -> Gaussian:
        """The Gaussian with the given moments; the kind of `second` tells the structure."""
        if isinstance(second, dict):
            variance = vectors.addcmul(second, first, first, value=-1.0)
            return cls(first, DiagonalMatrix({k: 1.0 / v for k, v in variance.items()}))
        if second.ndim == 0:
            spread = second - vectors.dot(first, first)
            unit = Isotropic().identity(first, 1.0)
            return cls(first, IsotropicMatrix(unit.size / spread, unit.shapes))
        shapes = {k: tuple(v.shape) for k, v in first.items()}
        flat = flatten(first, shapes)
        covariance = second - torch.outer(flat, flat)
        return cls(first, DenseMatrix(torch.linalg.inv(covariance), shapes))


@dataclass(frozen=True)
class FanIn:
    """First standard deviations `gain / √fan_in`, which keep a network's signal in scale.

    `weight`, `bias` and `norm` are the gains of matrices and kernels, of biases, and of the scales
    and shifts of normalising layers, whose fan-in is their number of channels.
    """

    weight: float = 1.0
    bias: float = 1.0
    norm: float = 1.0

    def __post_init__(self) -> None:
        if not all(gain > 0 and math.isfinite(gain) for gain in vars(self).values()):
            raise ValueError(f"Gains must be positive, got {self}.")

    def precision(self, params: Params) -> Params:
        """`fan_in / gain²` of each weight."""
        return {k: torch.full_like(v, self._precision(k, params)) for k, v in params.items()}

    def _precision(self, name: str, params: Params) -> float:
        if params[name].ndim > 1:
            return math.prod(params[name].shape[1:]) / self.weight**2
        # A bias has the fan-in of the matrix of its layer, if there is one.
        partner = params.get(name.replace("bias", "weight"), params[name])
        if partner.ndim > 1:
            return math.prod(partner.shape[1:]) / self.bias**2
        return params[name].numel() / self.norm**2


@dataclass(frozen=True)
class GaussianFamily(Family):
    """Gaussians of one structure; the first has precision `weight · curvature + prior_precision`.

    `curvature` is what is believed of the loss of one datum before any is seen. With `spread` the
    first belief is diagonal and has those standard deviations instead.
    """

    structure: Structure = field(default_factory=Diagonal)
    curvature: float = 1.0
    spread: FanIn | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(
                f"GaussianFamily takes a structure such as Diagonal(), got {self.structure!r}."
            )
        if not self.curvature >= 0:
            raise ValueError(f"The initial curvature must not be negative: {self.curvature}.")
        if self.spread is not None and not isinstance(self.structure, Diagonal):
            raise TypeError(f"FanIn() is for Diagonal(), got {type(self.structure).__name__}().")

    def for_model(self, model: nn.Module) -> GaussianFamily:
        return replace(self, structure=self.structure.for_model(model))

    def first_curvature(self, params: Params, weight: float) -> Matrix:
        """The curvature of the whole data set before any is seen."""
        return self.structure.identity(params, weight * self.curvature)

    def init(self, params: Params, *, weight: float, prior_precision: float) -> Gaussian:
        mean = {name: value.detach().clone() for name, value in params.items()}
        if self.spread is not None:
            return Gaussian(mean, DiagonalMatrix(self.spread.precision(mean)))
        return Gaussian(mean, self.first_curvature(mean, weight).damped(prior_precision))
