"""Kronecker-factored Gaussians in the bases in which they are diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Generator, Tensor

from bayesrule.matrices import DiagonalMatrix, Kronecker
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.rotation import Rotation
from bayesrule.posteriors.gaussian import Gaussian, GaussianFamily, Normal
from bayesrule.tensors import tree, vectors
from bayesrule.types import Params


@dataclass(frozen=True)
class Rotated(Normal):
    """`q(θ) = N(mean, precision⁻¹)` with `rotated`, the mean seen in the precision's own bases.

    There the weights are independent, so that draws, steps and the KL (the prior looks the same in
    all bases) cost no more than those of a diagonal Gaussian: `inner`. The mean itself is worked
    out when somebody asks for it.
    """

    rotated: Params
    precision: KroneckerMatrix

    @classmethod
    def of(cls, mean: Params, precision: KroneckerMatrix) -> Rotated:
        """The belief with this mean; the precision is one that `spectral` made."""
        return cls(Rotation.of(precision).into(mean), precision)

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

    def kl(self, prior_precision: float) -> Tensor:
        return self.inner.kl(prior_precision)

    def entropy(self) -> Tensor:
        return self.inner.entropy()


@dataclass(frozen=True)
class RotatedFamily(GaussianFamily):
    """Gaussians of a `Kronecker()` structure, kept in the eigenbases of its factors.

    For rules that keep the bases over many steps, such as `Noisy(inverse_every=100)`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.structure, Kronecker):
            raise TypeError(
                f"RotatedFamily takes Kronecker(), got {self.structure!r}; use GaussianFamily()."
            )

    def init(  # type: ignore[override]
        self, params: Params, *, weight: float, prior_precision: float
    ) -> Rotated:
        first = super().init(params, weight=weight, prior_precision=prior_precision)
        assert isinstance(first.precision, KroneckerMatrix)
        return Rotated.of(first.mean, first.precision.spectral())
