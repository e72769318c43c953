"""Blocks of one layer: `A ⊗ S` with factored damping, with exact damping, and corrected."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix
from bayesrule.matrices.diagonal import only_diagonal
from bayesrule.matrices.factors import (
    Factors,
    Root,
    eigen,
    floored,
    inverse_root,
    inverse_roots,
    outer,
    quadratic,
    shifted,
    spread,
)
from bayesrule.matrices.layer_rows import LayerRows, Place, rows_of
from bayesrule.tensors.vectors import over
from bayesrule.types import Number, Params, Rows


@dataclass(frozen=True)
class LayerMatrix(Matrix):
    """A matrix over the parameters of one layer, given by two factors.

    Those of several nets can be stacked along a first axis of all tensors.
    """

    place: Place
    factors: Factors

    @property
    @abstractmethod
    def root(self) -> Root:
        """A root of the inverse, computed once."""

    @abstractmethod
    def seen_from(self, left: Tensor, right: Tensor) -> Tensor:
        """The diagonal of `(right ⊗ left)ᵀ P (right ⊗ left)`, (out, in)."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """`P x` on a matrix (out, in)."""

    @abstractmethod
    def spectral(self) -> CorrectedLayer:
        """The same matrix, kept as a diagonal in the eigenbases of its factors."""

    def factored(self) -> FactoredLayer:
        """The matrix of the factors alone, without anything known in other bases."""
        return FactoredLayer(self.place, self.factors)

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Eigenvalues and eigenvectors of S, then those of A; damping does not change them."""
        outputs, inputs = self.factors.output, self.factors.mean_input
        return *eigen(outputs, self.whose), *eigen(inputs, self.whose)

    def combined(self, factors: Factors, parts: list[tuple[Self, Number]]) -> Self:
        """The sum of the given multiples of matrices, whose `factors` are known."""
        return replace(self, factors=factors)

    @property
    def whose(self) -> str:
        """The layer, in words."""
        return f"the layer of {self.place.weight!r}"

    def matmul(self, vector: Params) -> Params:
        return self.place.split(self.apply(self.place.join(vector)))

    def solve(self, vector: Params) -> Params:
        return self.place.split(self.root.solve(self.place.join(vector)))

    def inv_sqrt(self, noise: Params) -> Params:
        return self.place.split(self.root.draw(self.place.join(noise)))

    def diagonal(self) -> Params:
        like = self.factors.output
        eyes = (torch.eye(n, dtype=like.dtype, device=like.device) for n in self.place.size)
        return self.place.split(self.seen_from(*eyes))

    def inverse_diagonal(self) -> Params:
        return self.place.split(self.root.diagonal())

    def trace_solve(self, other: Matrix) -> Tensor:
        if isinstance(other, LayerMatrix):
            rotated = other.seen_from(self.root.left, self.root.right)
            return (self.root.gains * rotated).sum((-2, -1))
        diagonal = self.place.join(only_diagonal(other, type(self).__name__))
        return (self.root.diagonal() * diagonal).sum((-2, -1))

    def output_covariance(self, rows: Rows) -> Tensor:
        layer_rows = rows_of(rows, self.place)
        return layer_rows.gram(self.root.left, self.root.right, self.root.gains)

    def plus(self, other: Self) -> Self:
        return self.combined(self.factors.plus(other.factors), [(self, 1.0), (other, 1.0)])

    def times(self, factor: Number) -> Self:
        return self.combined(self.factors.times(factor), [(self, factor)])

    def lerp_(self, target: Self, rate: Number) -> Self:
        factors = self.factors.lerp(target.factors, rate)
        return self.combined(factors, [(self, 1.0 - rate), (target, rate)])

    def retract_(self, target: Self, rate: Number, precision: Self) -> Self:
        factors = self.factors.retract(target.factors, rate, precision.factors)
        return self.combined(factors, [(self, 1.0 - rate), (target, rate)])

    def damped(self, damping: float) -> Self:
        new = replace(self, factors=self.factors.damped(damping))
        if "eigen" in vars(self):
            # Trying many dampings then costs as much as one.
            vars(new)["eigen"] = self.eigen
        return new


@dataclass(frozen=True)
class FactoredLayer(LayerMatrix):
    """`(A + π√d I) ⊗ (S + √d/π I)`: each factor is damped, so two Cholesky factors suffice."""

    @cached_property
    def damped_factors(self) -> tuple[Tensor, Tensor]:
        """The damped factors of outputs and inputs, `S + √d/π I` and `A + π√d I`."""
        right, left = self.factors.shares()
        return shifted(self.factors.output, left), shifted(self.factors.mean_input, right)

    @cached_property
    def root(self) -> Root:
        left, right = (inverse_root(factor, self.whose) for factor in self.damped_factors)
        return Root.of(left, right)

    def derived(self) -> Params:
        return {"left": self.root.left, "right": self.root.right}

    def restore(self, derived: Params) -> None:
        if derived:
            vars(self)["root"] = Root.of(**derived)

    @staticmethod
    def find_roots(layers: list[FactoredLayer]) -> None:
        """Computes the roots of several layers at once, unless they have them."""
        if "root" in vars(layers[0]):
            return
        factors = [factor for layer in layers for factor in layer.damped_factors]
        whose = ", ".join(layer.whose for layer in layers)
        roots = iter(inverse_roots(factors, whose))
        for layer, pair in zip(layers, zip(roots, roots, strict=True), strict=True):
            vars(layer)["root"] = Root.of(*pair)

    def apply(self, x: Tensor) -> Tensor:
        left, right = self.damped_factors
        return left @ x @ right

    def logdet(self) -> Tensor:
        # The roots are triangular, and roots of the inverse.
        roots = self.root.left, self.root.right
        left, right = (torch.linalg.diagonal(root).abs().log().sum(-1) for root in roots)
        num_out, num_in = self.place.size
        return -2.0 * (num_in * left + num_out * right)

    def seen_from(self, left: Tensor, right: Tensor) -> Tensor:
        outputs, inputs = self.damped_factors
        return outer(quadratic(left, outputs), quadratic(right, inputs))

    def spectral(self) -> CorrectedLayer:
        outputs, left, inputs, right = self.eigen
        more, less = self.factors.shares()
        values = outer(outputs + less.unsqueeze(-1), inputs + more.unsqueeze(-1))
        return CorrectedLayer.diagonal_in(self, left, right, values)


@dataclass(frozen=True)
class ExactLayer(LayerMatrix):
    """`A ⊗ S + d I` in the eigenbases of the two factors: `(U ⊗ V) diag(s + d) (U ⊗ V)ᵀ`."""

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor, Tensor]:
        """V (out, out), U (in, in) and s (out, in), the eigenvalues without the damping."""
        outputs, left, inputs, right = self.eigen
        return left, right, outer(outputs, inputs)

    @cached_property
    def values(self) -> Tensor:
        """The eigenvalues (out, in), with the damping."""
        return self.spectrum[2] + spread(self.factors.damping)

    @cached_property
    def root(self) -> Root:
        left, right, _ = self.spectrum
        return Root(left, right, 1.0 / floored(self.values, self.whose))

    def spectral(self) -> CorrectedLayer:
        left, right, _ = self.spectrum
        return CorrectedLayer.diagonal_in(self, left, right, self.values)

    def apply(self, x: Tensor) -> Tensor:
        left, right, _ = self.spectrum
        return left @ (self.values * (left.mT @ x @ right)) @ right.mT

    def logdet(self) -> Tensor:
        return -self.root.gains.log().sum((-2, -1))

    def seen_from(self, left: Tensor, right: Tensor) -> Tensor:
        outputs, inputs, _ = self.spectrum
        return (left.mT @ outputs).square() @ self.values @ (right.mT @ inputs).square().mT


@dataclass(frozen=True)
class CorrectedLayer(ExactLayer):
    """As `ExactLayer`, with the curvature's own diagonal in the eigenbases instead of the product.

    George et al. (2018), EK-FAC: of all matrices that are diagonal there, `s = Σ (Vᵀ r U)²` is the
    closest to `Σ r rᵀ`. Sums and averages of matrices in the same bases stay in them. Others are
    expressed in the eigenbases of the new factors, where each keeps its trace but loses what is not
    diagonal in its own bases.
    """

    left: Tensor
    right: Tensor
    scales: Tensor

    @classmethod
    def of(cls, place: Place, rows: LayerRows) -> CorrectedLayer:
        """The matrix of the rows of a layer."""
        bare = FactoredLayer(place, Factors.of(rows.moments()))
        _, left, _, right = bare.eigen
        return cls(place, bare.factors, left, right, rows.squares(left, right))

    def of_more(self, rows: LayerRows) -> CorrectedLayer:
        """The matrix of other rows of the layer, in the bases of this one."""
        scales = rows.squares(self.left, self.right)
        return replace(self, factors=Factors.of(rows.moments()), scales=scales)

    @classmethod
    def identity(cls, place: Place, factors: Factors, scale: float) -> CorrectedLayer:
        """`scale · I`, in the standard basis."""
        like = factors.output
        left, right = (torch.eye(n, dtype=like.dtype, device=like.device) for n in place.size)
        return cls(place, factors, left, right, like.new_full(place.size, scale))

    @classmethod
    def diagonal_in(
        cls, layer: LayerMatrix, left: Tensor, right: Tensor, values: Tensor
    ) -> CorrectedLayer:
        """The matrix with these eigenvalues, damping included, in the given bases.

        The factors keep their damping, so the scales are the values without it.
        """
        scales = floored(values, layer.whose) - spread(layer.factors.damping)
        return cls(layer.place, layer.factors, left, right, scales)

    @property
    def spectrum(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.left, self.right, self.scales

    def combined(self, factors: Factors, parts: list[tuple[Self, Number]]) -> Self:
        left, right = self.left, self.right
        others = [part for part, _ in parts if part is not self]
        if all(torch.equal(part.left, left) and torch.equal(part.right, right) for part in others):
            terms = [part.scales * over(share, part.scales) for part, share in parts]
        else:
            _, left, _, right = FactoredLayer(self.place, factors).eigen
            terms = [part._scales_in(left, right) * share for part, share in parts]
        scales = sum(terms[1:], terms[0])
        return replace(self, factors=factors, left=left, right=right, scales=scales)

    def refreshed(self) -> CorrectedLayer:
        """The same matrix in the eigenbases of its factors, from which kept bases drift away."""
        _, left, _, right = self.eigen
        return replace(self, left=left, right=right, scales=self._scales_in(left, right))

    def _scales_in(self, left: Tensor, right: Tensor) -> Tensor:
        outputs, inputs = (left.mT @ self.left).square(), (right.mT @ self.right).square()
        return outputs @ self.scales @ inputs.mT
