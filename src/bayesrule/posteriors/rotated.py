"""Kronecker-factored Gaussians, kept in the bases in which they are diagonal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bayesrule.matrices import DiagonalMatrix, Kronecker, Matrix
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.posteriors._base import Posterior, Turn
from bayesrule.posteriors.gaussian import Gaussian, GaussianFamily, Normal
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import EarlierPosterior, Prior, as_prior
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.distributed import from_first_rank
from bayesrule.tensors.stand_in import WeightStandIn, plain
from bayesrule.types import Number, Params


class _RotatedLayer:
    """The weight and bias of one layer, `V X Uᵀ`, from a matrix X (out, in) in its bases."""

    def __init__(self, layer: CorrectedLayer, matrix: Tensor) -> None:
        self.place, self.left, self.right = layer.place, layer.left, layer.right
        self.matrix = matrix

    @cached_property
    def whole(self) -> Params:
        """Weight and bias by name, computed once."""
        # A module may read its weight without gradients first and use it with them later.
        with torch.enable_grad():
            return self.place.split(self.left @ self.matrix @ self.right.mT)

    def linear(self, x: Tensor) -> Tensor:
        """`((x, 1) U) Xᵀ Vᵀ`, which for few inputs is cheaper than forming the weight."""
        flat = x.reshape(-1, x.shape[-1])
        if self.place.bias is None:
            inputs = flat @ self.right
        else:
            inputs = torch.addmm(self.right[-1], flat, self.right[:-1])
        outputs = inputs @ self.matrix.mT @ self.left.mT
        return outputs.reshape(*x.shape[:-1], len(self.left))

    def is_cheap(self, x: Tensor) -> bool:
        """Whether rotating the inputs takes fewer operations than rotating the weight."""
        (num_out, num_in), rows = self.place.size, x.numel() // max(1, x.shape[-1])
        return rows * (num_out**2 + num_in**2) < num_out * num_in * (num_out + num_in)


class RotatedWeight(WeightStandIn):
    """A weight or a bias of a layer whose matrix is given in other bases.

    A linear layer with few inputs is applied in these bases; any other torch function gets the
    weight itself.
    """

    layer: _RotatedLayer
    alternative = "Use GaussianFamily() instead of RotatedFamily() (inverse_every=1)."

    @staticmethod
    def __new__(cls, label: str, shape: Sequence[int], layer: _RotatedLayer) -> RotatedWeight:
        like = layer.matrix
        tensor = Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=like.dtype, device=like.device, requires_grad=True
        )
        tensor.label, tensor.layer = label, layer
        return tensor

    def materialised(self) -> Tensor:
        return self.layer.whole[self.label]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RotatedWeight({self.label!r}, shape={tuple(self.shape)})"


def turned(precision: KroneckerMatrix, rotated: Params) -> Params:
    """The weights to run a network with, from their matrices in the bases of a precision."""
    weights = {name: rotated[name] for name in precision.rest}
    for name, matrix in precision.bases.items():
        layer, (out, *_) = _RotatedLayer(matrix, rotated[name]), matrix.place.shape
        weights[name] = RotatedWeight(name, matrix.place.shape, layer)
        if matrix.place.bias is not None:
            weights[matrix.place.bias] = RotatedWeight(matrix.place.bias, (out,), layer)
    return {name: weights[name] for name in precision.names}


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    x = plain(input)
    rotated = isinstance(weight, RotatedWeight) and _are_of_one_layer(weight, bias)
    if rotated and weight.layer.is_cheap(x):
        return weight.layer.linear(x)
    return F.linear(x, plain(weight), plain(bias))


def _are_of_one_layer(weight: RotatedWeight, bias: Any) -> bool:
    """Whether a weight and a bias, which may be None, belong to the same layer."""
    if bias is not None and getattr(bias, "layer", None) is not weight.layer:
        return False
    return weight.layer.place.names == tuple(
        part.label for part in (weight, bias) if part is not None
    )


RotatedWeight.handlers = {F.linear: _linear}


@dataclass(frozen=True)
class RotatedPoint(Point):
    """Weights expressed in the bases of a precision, in which their gradient is taken, too.

    A draw keeps the mean in these bases, so that it can be mirrored.
    """

    precision: KroneckerMatrix
    mean: Params = field(default_factory=dict)

    def weights(self, coordinates: Params) -> Params:
        return turned(self.precision, coordinates)

    @property
    def plain(self) -> Params:
        return self.precision.from_bases(self.coordinates)

    def seen(self, gradient: Params) -> Params:
        return self.precision.into_bases(gradient)

    def mirrored(self) -> RotatedPoint:
        twice = vectors.scale(self.mean, 2.0)
        return replace(self, coordinates=vectors.add_(twice, self.coordinates, alpha=-1.0))


@dataclass(frozen=True)
class _EarlierRotated(EarlierPosterior):
    """A posterior of earlier data as the prior of weights that are expressed in other bases."""

    precision: KroneckerMatrix

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        weights = self.precision.from_bases(at)
        slope = super().pull_(vectors.zeros_like(weights), weights, factor)
        return vectors.add_(gradient, self.precision.into_bases(slope))


@dataclass(frozen=True, repr=False)
class Rotated(Normal):
    """`q(θ) = N(mean, precision⁻¹)`, where `rotated` is the mean in the precision's own bases.

    There the weights are independent, so that draws, steps and the KL (N(0, I/δ) is the same in all
    bases) cost no more than those of a diagonal Gaussian, `inner`. The mean itself is computed when
    it is first read.
    """

    rotated: Params
    precision: KroneckerMatrix

    @classmethod
    def of(cls, mean: Params, precision: KroneckerMatrix) -> Rotated:
        """The posterior with this mean and a precision that `spectral` made."""
        return cls(precision.into_bases(mean), precision)

    @cached_property
    def inner(self) -> Gaussian:
        """The posterior over the weights in these bases."""
        return Gaussian(self.rotated, DiagonalMatrix(self.precision.eigenvalues()))

    @cached_property
    def mean(self) -> Params:  # type: ignore[override]
        return self.precision.from_bases(self.rotated)

    @property
    def num_parameters(self) -> int:
        """As in any other bases: the mean, the factors, and the diagonal of all other weights."""
        factors = {k: layer.factors for k, layer in self.precision.layers.items()}
        free = tree.tensors(factors | self.precision.rest)
        return vectors.numel(self.rotated) + vectors.numel(free)

    def offset(self, generator: Generator) -> Params:
        return self.precision.from_bases(self.inner.offset(generator))

    def at_mean(self) -> Point:
        return RotatedPoint(self.rotated, self.precision, self.rotated)

    def draw(self, generator: Generator) -> Point:
        return RotatedPoint(self.inner.sample(generator), self.precision, self.rotated)

    untracked = draw

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        # N(0, I / precision) is the same in all bases.
        return self.inner.kl(prior) if as_prior(prior).earlier is None else super().kl(prior)

    several_draws = False

    def anew(self) -> Rotated:
        return Rotated(self.rotated, self.precision.anew())

    def seen(self, prior: Prior) -> Prior:
        return prior if prior.earlier is None else _EarlierRotated(prior.earlier, self.precision)

    def coordinates(self) -> Gaussian:
        return self.inner

    def whole_precision(self) -> Matrix:
        return self.precision

    def with_mean(self, mean: Params) -> Rotated:
        return replace(self, rotated=mean)

    def with_precision(self, precision: Matrix) -> tuple[Rotated, Turn]:
        new = Rotated.of(self.mean, _in_eigenbases(precision))
        return new, lambda vector: new.precision.into_bases(self.precision.from_bases(vector))

    def divisor(self, precision: Matrix) -> Matrix:
        """A damped precision in the bases of this posterior, which damping does not change."""
        return DiagonalMatrix(_in_eigenbases(precision).eigenvalues())


@dataclass(frozen=True)
class FactoredFamily(GaussianFamily):
    """Gaussians of a `Kronecker()` structure, kept by its factors; adopts `RotatedFamily`'s."""

    def other_form(self) -> GaussianFamily:
        return RotatedFamily(self.structure, self.curvature)

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        assert isinstance(posterior, Rotated)
        precision = posterior.precision
        return Gaussian(posterior.mean, precision.factored()), precision.from_bases


@dataclass(frozen=True)
class RotatedFamily(GaussianFamily):
    """Gaussians of a `Kronecker()` structure, kept in the eigenbases of its factors.

    For rules that keep the bases over many steps, such as `Natural(inverse_every=100)`.
    """

    has_mean = False
    own_coordinates = True
    group_obstacle = "it is kept in eigenbases; use GaussianFamily(Kronecker())"
    replay_obstacle = "a belief that is kept in eigenbases"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.structure.has_eigenbases:
            raise TypeError(
                f"RotatedFamily takes Kronecker(), got {self.structure!r}; use GaussianFamily()."
            )

    def other_form(self) -> GaussianFamily | None:
        corrected = cast(Kronecker, self.structure).corrected
        return None if corrected else GaussianFamily(self.structure, self.curvature)

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        precision = cast(KroneckerMatrix, posterior.whole_precision())
        new = Rotated.of(posterior.mean, precision.spectral())
        return new, new.precision.into_bases

    def init(  # type: ignore[override]
        self, params: Params, *, weight: float, prior: Prior | float
    ) -> Rotated:
        first = super().init(params, weight=weight, prior=prior)
        return Rotated.of(first.mean, cast(KroneckerMatrix, first.precision).spectral())


def _in_eigenbases(precision: Matrix) -> KroneckerMatrix:
    """Machines compute different eigenvectors, so all take those of the first rank."""
    return from_first_rank(cast(KroneckerMatrix, precision).spectral())
