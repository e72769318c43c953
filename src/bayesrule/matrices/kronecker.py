"""Kronecker-factored matrices: a product of two factors for each layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, nn

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.blocks import BlockMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix
from bayesrule.matrices.factors import Factors
from bayesrule.matrices.kronecker_layer import (
    CorrectedLayer,
    ExactLayer,
    FactoredLayer,
    LayerMatrix,
)
from bayesrule.matrices.layer_rows import LayerRows, MatrixRows, Place, numbered, rows_of
from bayesrule.matrices.layout import Pair, by_module, by_shape, places
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.vectors import Shapes, shapes_of
from bayesrule.types import Params, Rows

# The roots of factors up to this width are computed together, padded to one size.
_SMALL = 128
REST = "*"
"""The name of the block of all parameters outside of the layers."""


@dataclass(frozen=True)
class KroneckerMatrix(BlockMatrix):
    """One block for each layer, by the name of its weight, and a diagonal for the rest (REST)."""

    @property
    def layers(self) -> dict[str, LayerMatrix]:
        """The blocks of the layers, by the name of the weight."""
        return {k: block for k, block in self.blocks.items() if k != REST}  # type: ignore[misc]

    @property
    def rest(self) -> Params:
        """The diagonal of the parameters outside of the layers."""
        return self.blocks[REST].diagonal() if REST in self.blocks else {}

    @derived
    def several_draws(self) -> bool:
        """Whether all parameters belong to layers, whose roots can make several draws at once."""
        return REST not in self.blocks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(name for members in self.groups.values() for name in members)

    def _find_roots(self) -> None:
        """Computes all small roots at once on a GPU, which is faster than launching one by one."""
        layers = [layer for layer in self.layers.values() if isinstance(layer, FactoredLayer)]
        small = [layer for layer in layers if max(layer.place.size) <= _SMALL]
        if small and small[0].factors.output.is_cuda:
            FactoredLayer.find_roots(small)

    def solve(self, vector: Params) -> Params:
        self._find_roots()
        return super().solve(vector)

    def inv_sqrt(self, noise: Params) -> Params:
        self._find_roots()
        return super().inv_sqrt(noise)

    def spectral(self) -> KroneckerMatrix:
        """The same matrix, each layer kept as a diagonal in the eigenbases of its factors."""
        layers = {k: layer.spectral() for k, layer in self.layers.items()}
        return replace(self, blocks=self.blocks | layers)

    def factored(self) -> KroneckerMatrix:
        """The same matrix, kept by its factors; undoes `spectral`."""
        layers = {k: layer.factored() for k, layer in self.layers.items()}
        return replace(self, blocks=self.blocks | layers)

    # For matrices made by `spectral`. A vector expressed in their bases has a matrix (out, in) for
    # each layer, by the name of its weight and with the bias as the last column; all other
    # parameters stay as they are.

    @cached_property
    def bases(self) -> dict[str, CorrectedLayer]:
        """The layers with their eigenbases V and U, in which a vector x is `Vᵀ x U`."""
        return {k: v for k, v in self.layers.items() if isinstance(v, CorrectedLayer)}

    def eigenvalues(self) -> Params:
        """The diagonal of the matrix in these bases."""
        return {k: layer.values for k, layer in self.bases.items()} | self.rest

    def into_bases(self, vector: Params) -> Params:
        """A vector, expressed in these bases."""
        rotated = {
            k: layer.left.mT @ layer.place.join(vector) @ layer.right
            for k, layer in self.bases.items()
        }
        return rotated | {name: vector[name] for name in self.rest}

    def from_bases(self, rotated: Params) -> Params:
        """The vector that is `rotated` in these bases."""
        vector = {name: rotated[name] for name in self.rest}
        for k, layer in self.bases.items():
            vector |= layer.place.split(layer.left @ rotated[k] @ layer.right.mT)
        return {name: vector[name] for name in self.names}


class OfLayers(Structure):
    """The base of structures of two factors for each layer, the means of outer products."""

    counts_each = True
    only_positive = True
    positive_part = True
    layered = True
    stacks = True


@dataclass(frozen=True)
class Kronecker(OfLayers):
    """For each layer `A ⊗ S`, the moments of its inputs and of its output gradients (K-FAC).

    The bias is the last input column. Norms, embeddings and all other parameters have a diagonal
    block. A weight that is used several times, or outside of a layer, gets the two factors with the
    trace and the partial traces of its curvature.

    A sum over batches has the mean of A over all inputs and the sum of S over all gradients, not
    the sum of the products; an average averages A and S separately.

    - default: damping as `(A + π√d I) ⊗ (S + √d/π I)`, by Cholesky factors.
    - `exact`: damping as `A ⊗ S + d I`, in the eigenbases of A and S.
    - `corrected`: exact, with the diagonal of the curvature in these bases (EK-FAC).
    - `widest`: a layer with a factor wider than this has a diagonal block.
    - `layers`: pairs of weight and bias, which `for_model` finds; without them, every parameter
      with two axes or more counts as the weight of a layer.
    - `bases`: a corrected matrix whose bases curvatures are expressed in, so that averages stay
      there.
    """

    exact: bool = False
    corrected: bool = False
    widest: int = 8192
    layers: tuple[Pair, ...] | None = None
    bases: KroneckerMatrix | None = field(default=None, repr=False, compare=False)

    has_eigenbases = True

    @derived
    def draws_together(self) -> bool:
        """Corrected matrices cannot be summed over draws unless they share bases."""
        return not self.corrected or self.bases is not None

    @derived
    def replays(self) -> bool:
        """An eigendecomposition reads numbers to know when to stop, which a graph cannot do."""
        return not (self.exact or self.corrected)

    @derived
    def piece_obstacle(self) -> str | None:
        if not self.corrected:
            return None
        return "Kronecker(corrected=True) has bases of its own for each; use Kronecker()"

    @derived
    def rank_obstacle(self) -> str | None:
        if not self.corrected:
            return None
        return (
            "Kronecker(corrected=True) has its own bases on every machine, which cannot be summed; "
            "use Kronecker() or Kronecker(exact=True) with several machines"
        )

    def __post_init__(self) -> None:
        if self.widest < 1:
            raise ValueError(f"Kronecker takes a width of at least 1, got widest={self.widest}.")

    def for_model(self, model: nn.Module) -> Kronecker:
        """The structure with the layers of a module.

        >>> net = nn.Sequential(nn.Embedding(9, 2), nn.Linear(2, 3))
        >>> Kronecker().for_model(net).layers
        (('1.weight', '1.bias'),)
        """
        return replace(self, layers=by_module(model))

    def exactly_damped(self) -> Kronecker:
        return self if self.corrected else replace(self, exact=True)

    def _places(self, shapes: Shapes) -> list[Place]:
        pairs = by_shape(shapes) if self.layers is None else self.layers
        return places(pairs, shapes)

    def _matrix(
        self, shapes: Shapes, layer: Callable[[Place], LayerMatrix], rest: Callable[..., Params]
    ) -> KroneckerMatrix:
        narrow = [p for p in self._places(shapes) if max(p.size) <= self.widest]
        groups = {place.weight: place.names for place in narrow}
        blocks: dict[str, Matrix] = {place.weight: layer(place) for place in narrow}
        taken = {name for names in groups.values() for name in names}
        others = tuple(name for name in shapes if name not in taken)
        if others:
            blocks[REST], groups[REST] = DiagonalMatrix(rest(others)), others
        return KroneckerMatrix(blocks, groups)

    def _layer(self, place: Place, rows: LayerRows) -> LayerMatrix:
        if self.bases is not None:
            return self.bases.bases[place.weight].of_more(rows)
        if self.corrected:
            return CorrectedLayer.of(place, rows)
        return self._plain(place, Factors.of(rows.moments()))

    def _plain(self, place: Place, factors: Factors) -> LayerMatrix:
        return (ExactLayer if self.exact else FactoredLayer)(place, factors)

    def identity(self, params: Params, scale: float) -> KroneckerMatrix:
        shapes = shapes_of(params)
        for place in self._places(shapes):
            width = max(place.size)
            if width > self.widest:
                warnings.warn(
                    f"The layer of {place.weight!r} has a factor of {width:,} × {width:,} "
                    f"({width**2 * 4 / 1e9:,.1f} GB), wider than {self.widest:,}: it gets a "
                    f"diagonal block. widest={width} keeps the factor: in "
                    f"Kronecker(widest={width}), or of noisy_kfac.",
                    stacklevel=2,
                )

        def layer(place: Place) -> LayerMatrix:
            factors = Factors.identity(place.size, scale, params[place.weight])
            if self.corrected:
                return CorrectedLayer.identity(place, factors, scale)
            return self._plain(place, factors)

        def rest(names: tuple[str, ...]) -> Params:
            return Diagonal().identity({name: params[name] for name in names}, scale).values

        return self._matrix(shapes, layer, rest)

    def contract(self, rows: Rows) -> KroneckerMatrix:
        return self._matrix(
            rows.shapes,
            lambda place: self._layer(place, rows_of(rows, place)),
            lambda names: rows.only(names).squares(),
        )

    def own_form(self, matrix: Matrix) -> Matrix:
        if not isinstance(matrix, KroneckerMatrix) or (self.exact and not self.corrected):
            return matrix
        return matrix.spectral() if self.corrected else matrix.factored()

    def in_bases_of(self, matrix: Matrix) -> Structure:
        if self.corrected and isinstance(matrix, KroneckerMatrix):
            return replace(self, bases=matrix)
        return self

    def project(self, matrix: Tensor, params: Params) -> KroneckerMatrix:
        """The positive part of each layer's block by its partial traces, the diagonal elsewhere."""
        index = numbered(params)

        def layer(place: Place) -> LayerMatrix:
            keep = place.join(index).reshape(-1)
            return self._layer(place, MatrixRows.of_matrix(matrix[keep][:, keep], place.size))

        def rest(names: tuple[str, ...]) -> Params:
            return {name: matrix.diagonal()[index[name]] for name in names}

        return self._matrix(shapes_of(params), layer, rest)
