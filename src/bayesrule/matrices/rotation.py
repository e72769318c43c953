"""Vectors seen in the bases in which a Kronecker-factored matrix is diagonal."""

from __future__ import annotations

from dataclasses import dataclass

from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.types import Params


@dataclass(frozen=True)
class Rotation:
    """The eigenbases of the factors of each layer: `Vᵀ x U` is a vector x seen in them.

    A vector that is seen so has a matrix (out, in) for each layer, by the name of its weight and
    with the bias as the last column of x; all other parameters stay as they are.
    """

    layers: dict[str, CorrectedLayer]
    rest: Params
    names: tuple[str, ...]

    @classmethod
    def of(cls, matrix: KroneckerMatrix) -> Rotation:
        """The bases of a matrix that `spectral` made."""
        layers = {k: v for k, v in matrix.layers.items() if isinstance(v, CorrectedLayer)}
        return cls(layers, matrix.rest, matrix.names)

    def values(self) -> Params:
        """The diagonal of the matrix in these bases: its eigenvalues."""
        return {k: layer.values for k, layer in self.layers.items()} | self.rest

    def into(self, vector: Params) -> Params:
        """A vector, seen in these bases."""
        seen = {
            k: layer.left.mT @ layer.place.join(vector) @ layer.right
            for k, layer in self.layers.items()
        }
        return seen | {name: vector[name] for name in self.rest}

    def back(self, seen: Params) -> Params:
        """The vector that is seen so."""
        found = {name: seen[name] for name in self.rest}
        for k, layer in self.layers.items():
            found |= layer.place.split(layer.left @ seen[k] @ layer.right.mT)
        return {name: found[name] for name in self.names}
