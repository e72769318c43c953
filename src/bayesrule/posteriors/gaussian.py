"""Gaussian posteriors with a precision of any structure."""

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
from bayesrule.posteriors._base import ElboTerms, Family, Free, Posterior
from bayesrule.posteriors.points import GaussianDraw, Point
from bayesrule.posteriors.prior import EarlierPosterior, GaussianPrior, Prior, as_prior
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Params


class Normal(Posterior):
    """`q(θ) = N(mean, precision⁻¹)`, however the precision is kept."""

    precision: Matrix
    linearisable = True

    @derived
    def independent(self) -> bool:
        """Whether the precision is diagonal."""
        return self.precision.independent

    def variance(self) -> Params:
        var = self.precision.inverse_diagonal()
        return {k: var[k] if k in var else torch.zeros_like(v) for k, v in self.mean.items()}

    def words(self) -> str:
        return f"{type(self).__name__} over {type(self.precision).__name__}"

    def offset(self, generator: Generator) -> Params:
        """A draw of `θ − mean`."""
        return self.precision.inv_sqrt(vectors.randn_like(self.mean, generator))

    def sample(self, generator: Generator) -> Params:
        return vectors.add_(self.offset(generator), self.mean)

    def draw(self, generator: Generator) -> Point:
        return GaussianDraw.of(self.mean, self.offset(generator), self.precision)

    @derived
    def several_draws(self) -> bool:
        """Whether the precision makes several draws at once; all weights must have one dtype."""
        return self.precision.several_draws and len({v.dtype for v in self.mean.values()}) == 1

    def draw_several(self, generators: Generators, draws: int) -> Point:
        offset = self.precision.inv_sqrt(vectors.several_randn_like(self.mean, draws, generators))
        return Point({name: v.unsqueeze(1) + offset[name] for name, v in self.mean.items()})

    def several(self, generator: Generator, num: int) -> Params:
        std = self.std() if self.independent else {}
        if std.keys() != self.mean.keys() or not _share_layout(self.mean):
            return super().several(generator, num)
        noise = vectors.several_randn(self.mean, num, generator)
        return {k: torch.addcmul(mean, noise[k], std[k]) for k, mean in self.mean.items()}

    def std(self) -> Params:
        return {name: value.rsqrt() for name, value in self.precision.diagonal().items()}

    def uncertain_variance(self) -> Params:
        return self.precision.inverse_diagonal()

    def _uncertain(self) -> Params:
        """The mean of the weights that have a variance."""
        return {name: self.mean[name] for name in self.precision.diagonal()}

    def log_prob(self, params: Params) -> Tensor:
        """`log q(θ)`, a 0-d tensor."""
        uncertain = self._uncertain()
        centred = {k: params[k] - v for k, v in uncertain.items()}
        quadratic = vectors.dot(centred, self.precision.matmul(centred))
        size = vectors.numel(uncertain)
        return 0.5 * (self.precision.logdet() - quadratic - size * math.log(2.0 * math.pi))

    def entropy(self, generator: Generator | None = None) -> Tensor:
        size = vectors.numel(self._uncertain())
        return 0.5 * (size * (1.0 + math.log(2.0 * math.pi)) - self.precision.logdet())

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        prior = as_prior(prior)
        if not prior.proper:
            # An improper prior is infinitely far away.
            return self.precision.logdet().new_tensor(math.inf)
        return self.kl_from(gaussian_of(prior, self._uncertain()))

    def kl_from(self, prior: Normal) -> Tensor:
        """`KL(self ‖ prior) = ½[tr(S⁻¹P) + Δᵀ P Δ − d + log|S| − log|P|]` for two Gaussians."""
        delta = {k: v - prior.mean[k] for k, v in self._uncertain().items()}
        spread = self.precision.trace_solve(prior.precision)
        shift = vectors.dot(delta, prior.precision.matmul(delta))
        logdets = self.precision.logdet() - prior.precision.logdet()
        return 0.5 * (spread + shift - vectors.numel(delta) + logdets)

    def kept(self) -> Gaussian:
        """A copy with tensors of its own, to be used as a prior later."""
        return tree.map_tensors(Gaussian(self.mean, self.precision), torch.clone)


def gaussian_of(prior: Prior, like: Params) -> Normal:
    """A prior as a Gaussian over the given weights."""
    if prior.earlier is not None:
        return prior.earlier
    precision = prior.diagonal(like)
    assert isinstance(precision, float)
    return Gaussian(vectors.zeros_like(like), Isotropic().identity(like, precision))


def _share_layout(params: Params) -> bool:
    """Whether all tensors have one dtype and device and are contiguous."""
    kinds = {(value.dtype, value.device) for value in params.values()}
    return len(kinds) == 1 and all(value.is_contiguous() for value in params.values())


@dataclass(frozen=True, repr=False)
class Gaussian(Normal):
    """`q(θ) = N(mean, precision⁻¹)` with the precision in any structure.

    >>> q = Gaussian({"w": torch.zeros(3)}, Diagonal().identity({"w": torch.zeros(3)}, 4.0))
    >>> q.variance()["w"]
    tensor([0.2500, 0.2500, 0.2500])
    """

    mean: Params
    precision: Matrix

    def anew(self) -> Gaussian:
        return replace(self, precision=self.precision.anew())

    def coordinates(self) -> Gaussian:
        return self

    def with_mean(self, mean: Params) -> Gaussian:
        return replace(self, mean=mean)

    def with_precision(self, precision: Matrix) -> tuple[Gaussian, None]:
        return Gaussian(self.mean, precision), None

    def free(self) -> Free:
        return {"mean": self.mean}

    def free_gradients(self, terms: ElboTerms) -> Free:
        # The covariance is fixed, so only the prior's pull on the mean is left of the KL.
        return {"mean": terms.mean_gradient(self.mean)}

    def natural(self) -> tuple[Params, Matrix]:
        """`λ = (S m, −½ S)`, with S itself for the second; zero for weights without a variance."""
        return self.precision.matmul(self.mean), self.precision

    @classmethod
    def from_natural(cls, first: Params, precision: Matrix) -> Gaussian:
        """The Gaussian with `S m = first` and the given precision."""
        return cls(precision.solve(first), precision)

    def expectation(self) -> tuple[Params, Params | Tensor]:
        """`μ = (E[θ], E[θθᵀ])`, the second as far as the structure keeps it.

        Isotropic: `E‖θ‖²` (0-d); diagonal: `E[θ²]` by name; dense: the matrix (P, P).
        """
        return self.mean, self.precision.second_moment(self.mean)

    @classmethod
    def from_expectation(cls, first: Params, second: Params | Tensor) -> Gaussian:
        """The Gaussian with the given moments; the type of `second` determines the structure."""
        if isinstance(second, dict):
            variance = vectors.addcmul(second, first, first, value=-1.0)
            return cls(first, DiagonalMatrix({k: 1.0 / v for k, v in variance.items()}))
        if second.ndim == 0:
            spread = second - vectors.dot(first, first)
            unit = Isotropic().identity(first, 1.0)
            return cls(first, IsotropicMatrix(unit.size / spread, unit.shapes))
        shapes = vectors.shapes_of(first)
        flat = vectors.flatten(first, shapes)
        covariance = second - torch.outer(flat, flat)
        return cls(first, DenseMatrix(torch.linalg.inv(covariance), shapes))


@dataclass(frozen=True)
class FanIn:
    """Initial standard deviations `gain / √fan_in`, which keep a network's signal in scale.

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
        # A bias has the fan-in of its layer's matrix, if there is one.
        partner = params.get(name.replace("bias", "weight"), params[name])
        if partner.ndim > 1:
            return math.prod(partner.shape[1:]) / self.bias**2
        return params[name].numel() / self.norm**2


@dataclass(frozen=True)
class GaussianFamily(Family):
    """Gaussians of one structure; the first has precision `weight · curvature + prior_precision`.

    `curvature` is the assumed curvature of the loss per datum before any data are seen; if None,
    the first batch tells (and until then it is 1). With `spread` the first posterior is diagonal
    and has those standard deviations instead.
    """

    structure: Structure = field(default_factory=Diagonal)
    curvature: float | None = 1.0
    spread: FanIn | None = None

    has_mean = True
    linearisable = True
    stack_obstacle = None

    def __post_init__(self) -> None:
        Structure.check(self.structure, "GaussianFamily")
        if self.curvature is not None and not self.curvature >= 0:
            raise ValueError(f"The initial curvature must not be negative: {self.curvature}.")
        if self.spread is not None and not self.structure.elementwise:
            raise TypeError(f"FanIn() is for Diagonal(), got {type(self.structure).__name__}().")

    def words(self) -> str:
        return self.structure.words()

    def for_model(self, model: nn.Module) -> GaussianFamily:
        return replace(self, structure=self.structure.for_model(model))

    @derived
    def independent(self) -> bool:
        """Whether all weights are independent."""
        return self.structure.independent

    @property
    def replay_obstacle(self) -> str | None:
        return None if self.structure.replays else f"the structure {self.structure!r}"

    def prior(self, given: object, params: Params) -> Prior:
        prior = gaussian_prior(given)
        if prior.earlier is None:
            return prior
        precision = self.structure.own_form(prior.earlier.precision)
        return EarlierPosterior(Gaussian(prior.earlier.mean, precision))

    def counted(self, params: Params) -> int:
        # A posterior that is conditioned on data starts as its prior and counts data as they come.
        return super().counted(params) if self.spread is None else 0

    @derived
    def looks_first(self) -> bool:
        return self.curvature is None and self.spread is None

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Gaussian:
        mean = {name: value.detach().clone() for name, value in params.items()}
        if self.spread is not None:
            # A posterior that is conditioned on data starts as its prior.
            earlier = as_prior(prior).earlier
            if earlier is not None:
                return earlier.kept()
            return Gaussian(mean, DiagonalMatrix(self.spread.precision(mean)))
        return Gaussian(mean, as_prior(prior).added_to(self.first_curvature(mean, weight)))


def gaussian_prior(given: object) -> Prior:
    """The prior of Gaussian weights, from a precision, a prior or an earlier Gaussian posterior."""
    if isinstance(given, Normal):
        return EarlierPosterior(given.kept())
    if isinstance(given, Prior):
        return given
    if given is None or isinstance(given, int | float):
        return GaussianPrior(1.0 if given is None else float(given))
    raise TypeError(
        "The prior of Gaussian weights is GaussianPrior(precision) or a Gaussian posterior of "
        f"earlier data, got {given!r}."
    )
