"""Kronecker-factored Gaussians in the bases in which they are diagonal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from torch import Generator, Tensor, distributed

from bayesrule.matrices import DiagonalMatrix, Kronecker, Matrix
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.rotation import Rotation
from bayesrule.posteriors._base import Posterior, Turn
from bayesrule.posteriors.gaussian import Gaussian, GaussianFamily, Normal
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import GaussianPrior, Prior
from bayesrule.posteriors.rotated_weight import turned
from bayesrule.tensors import tree, vectors
from bayesrule.types import Params


@dataclass(frozen=True)
class RotatedPoint(Point):
    """Weights given as seen in other bases, in which their gradient is wanted, too."""

    rotation: Rotation

    def weights(self, coordinates: Params) -> Params:
        return turned(self.rotation, coordinates)

    @property
    def plain(self) -> Params:
        return self.rotation.back(self.coordinates)

    def seen(self, gradient: Params) -> Params:
        return self.rotation.into(gradient)


@dataclass(frozen=True)
class RotatedDraw(RotatedPoint):
    """A draw of weights in other bases, which knows the mean there."""

    mean: Params

    def mirrored(self) -> RotatedDraw:
        twice = vectors.scale(self.mean, 2.0)
        return replace(self, coordinates=vectors.add_(twice, self.coordinates, alpha=-1.0))


@dataclass(frozen=True)
class _Turned(Turn):
    """From the bases of one belief to those of the next."""

    old: Rotation
    new: Rotation

    def __call__(self, vector: Params) -> Params:
        return self.new.into(self.old.back(vector))


@dataclass(frozen=True)
class Rotated(Normal):
    """`q(θ) = N(mean, precision⁻¹)` with `rotated`, the mean seen in the precision's own bases.

    There the weights are independent, so that draws, steps and the KL (the prior looks the same in
    all bases) cost no more than those of a diagonal Gaussian: `inner`. The mean itself is
    computed when it is first used.
    """

    rotated: Params
    precision: KroneckerMatrix

    __repr__ = Posterior.__repr__

    @classmethod
    def of(cls, mean: Params, precision: KroneckerMatrix) -> Rotated:
        """The belief with this mean; the precision is one that `spectral` made."""
        return cls(Rotation.of(precision).into(mean), precision)

    @property
    def any_tensor(self) -> Tensor:
        return next(iter(self.rotated.values()))

    @cached_property
    def rotation(self) -> Rotation:
        """The bases."""
        return Rotation.of(self.precision)

    @cached_property
    def inner(self) -> Gaussian:
        """The belief over the weights as seen in these bases."""
        return Gaussian(self.rotated, DiagonalMatrix(self.rotation.values()))

    @cached_property
    def mean(self) -> Params:  # type: ignore[override]
        return self.rotation.back(self.rotated)

    @property
    def num_parameters(self) -> int:
        """As many as in any other bases: the mean, the factors, and the diagonal of all else."""
        factors = {k: layer.factors for k, layer in self.precision.layers.items()}
        free = [v for _, v in tree.leaves(factors | self.precision.rest)]
        return vectors.numel(self.rotated) + sum(v.numel() for v in free if isinstance(v, Tensor))

    def offset(self, generator: Generator) -> Params:
        return self.rotation.back(self.inner.offset(generator))

    def at_mean(self) -> Point:
        return RotatedPoint(self.rotated, self.rotation)

    def draw(self, generator: Generator) -> Point:
        return RotatedDraw(self.inner.sample(generator), self.rotation, self.rotated)

    def untracked(self, generator: Generator) -> Point:
        return RotatedPoint(self.inner.sample(generator), self.rotation)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        return self.inner.kl(prior)

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return self.inner.entropy()

    several_draws = False

    def anew(self) -> Rotated:
        precision = self.precision.anew()
        assert isinstance(precision, KroneckerMatrix)
        return Rotated(self.rotated, precision)

    def coordinates(self) -> Gaussian:
        return self.inner

    def whole_precision(self) -> Matrix:
        return self.precision

    def with_mean(self, mean: Params) -> Rotated:
        return replace(self, rotated=mean)

    def with_precision(self, precision: Matrix) -> tuple[Rotated, Turn]:
        new = Rotated.of(self.mean, _of_first_rank(cast(KroneckerMatrix, precision).spectral()))
        return new, _Turned(self.rotation, new.rotation)

    def divisor(self, precision: Matrix) -> Matrix:
        """A damped precision in the bases of this belief, which damping leaves as they are."""
        damped = _of_first_rank(cast(KroneckerMatrix, precision).spectral())
        return DiagonalMatrix(Rotation.of(damped).values())

    def kept(self) -> Gaussian:
        return Gaussian(self.mean, self.precision.factored()).kept()


@dataclass(frozen=True)
class FactoredFamily(GaussianFamily):
    """Gaussians of a `Kronecker()` structure by its factors; takes beliefs kept in eigenbases."""

    def other_form(self) -> GaussianFamily:
        return RotatedFamily(self.structure, self.curvature)

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        assert isinstance(posterior, Rotated)
        return Gaussian(posterior.mean, posterior.precision.factored()), posterior.rotation.back


@dataclass(frozen=True)
class RotatedFamily(GaussianFamily):
    """Gaussians of a `Kronecker()` structure, kept in the eigenbases of its factors.

    For rules that keep the bases over many steps, such as `Natural(inverse_every=100)`.
    """

    has_mean = False
    own_coordinates = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.structure.has_eigenbases:
            raise TypeError(
                f"RotatedFamily takes Kronecker(), got {self.structure!r}; use GaussianFamily()."
            )

    @property
    def replay_obstacle(self) -> str | None:
        return "a belief that is kept in eigenbases"

    def other_form(self) -> GaussianFamily | None:
        corrected = cast(Kronecker, self.structure).corrected
        return None if corrected else GaussianFamily(self.structure, self.curvature)

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        precision = cast(KroneckerMatrix, posterior.whole_precision())
        new = Rotated.of(posterior.mean, precision.spectral())
        return new, new.rotation.into

    def prior(self, given: object, params: Params) -> Prior:
        prior = super().prior(given, params)
        if not isinstance(prior, GaussianPrior):
            raise TypeError(
                "A belief that is kept in eigenbases needs a prior that is the same in all bases, "
                "N(0, I / precision); use GaussianFamily(Kronecker()) with an earlier posterior."
            )
        return prior

    def init(  # type: ignore[override]
        self, params: Params, *, weight: float, prior: Prior | float
    ) -> Rotated:
        first = super().init(params, weight=weight, prior=prior)
        return Rotated.of(first.mean, cast(KroneckerMatrix, first.precision).spectral())


def _of_first_rank(matrix: KroneckerMatrix) -> KroneckerMatrix:
    """The matrix as the first machine has it: eigenvectors are not the same on all of them."""
    if distributed.is_available() and distributed.is_initialized():
        for _, value in tree.leaves(matrix):
            assert isinstance(value, Tensor)
            distributed.broadcast(value, src=0)
    return matrix
