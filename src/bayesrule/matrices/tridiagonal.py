"""Beliefs over a chain of layers in which neighbours are correlated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from bayesrule.matrices._base import Structure
from bayesrule.matrices.factors import Factors
from bayesrule.matrices.flow import Flow, broken_flow, flow_of
from bayesrule.matrices.layer_rows import (
    LayeredRows,
    MatrixRows,
    Means,
    Place,
    Products,
    Sizes,
    layered,
    numbered,
)
from bayesrule.matrices.layout import Pair, by_shape, chain_by_module, no_chain, places
from bayesrule.matrices.tridiagonal_matrix import BlockTridiagonalMatrix
from bayesrule.types import Params, Rows


@dataclass(frozen=True)
class BlockTridiagonal(Structure):
    """`A ⊗ S` for each layer of a chain and for each pair of neighbours; block-tridiagonal inverse.

    Martens & Grosse (2015), sec. 4.3: of all matrices with these blocks on and beside the diagonal
    it is the one whose inverse is zero elsewhere. For chains of linear and convolution layers;
    the positions of a convolution enter the products of neighbours by their mean. The diagonal
    factors are damped as those of `Kronecker()`, and sums and averages are taken in the same way.

    - `widest`: a wider factor is refused.
    - `layers`: pairs of weight and bias in their order; without them, those with two axes or more.
      `for_model` finds them and refuses a module with any other.
    - `flow`: the way of the data through them, where the module's code tells it beforehand.
    """

    widest: int = 8192
    layers: tuple[Pair, ...] | None = None
    flow: Flow | None = field(default=None, repr=False, compare=False)

    only_positive = True
    positive_part = True
    needs_layers = True
    layered = True
    stacks = True

    def for_model(self, model: nn.Module) -> BlockTridiagonal:
        """The structure with the layers of a module, which must have linear and convolution layers
        only."""
        return replace(self, layers=chain_by_module(model), flow=flow_of(model))

    def _places(self, shapes: Sizes) -> tuple[Place, ...]:
        found = places(by_shape(shapes) if self.layers is None else self.layers, shapes)
        taken = {name for place in found for name in place.names}
        lost = [name for name in shapes if name not in taken]
        if lost:
            raise no_chain(f"{lost[0]!r} belongs to none with a weight that is learned")
        for place in found:
            if max(place.size) > self.widest:
                raise ValueError(
                    f"The layer of {place.weight!r} has a factor {max(place.size):,} wide; the "
                    f"limit is {self.widest:,}. Use Kronecker(), where such a layer has a diagonal "
                    f"block, or BlockTridiagonal(widest={max(place.size)})."
                )
        return tuple(found)

    def identity(self, params: Params, scale: float) -> BlockTridiagonalMatrix:
        def layer(place: Place) -> Factors:
            return Factors.identity(place.size, scale, params[place.weight])

        return self._without_links(params, layer)

    def project(self, matrix: Tensor, params: Params) -> BlockTridiagonalMatrix:
        """The positive part of each layer's block by its partial traces; neighbours apart."""
        index = numbered(params)

        def layer(place: Place) -> Factors:
            keep = place.join(index).reshape(-1)
            block = MatrixRows.of_matrix(matrix[keep][:, keep], place.size)
            return Factors.of(block.moments())

        return self._without_links(params, layer)

    def _without_links(
        self, params: Params, layer: Callable[[Place], Factors]
    ) -> BlockTridiagonalMatrix:
        chain = self._places({name: tuple(value.shape) for name, value in params.items()})
        self._refuse_shortcuts(tuple(place.weight for place in chain))
        found = [layer(place) for place in chain]
        links = [_no_link(a, b) for a, b in pairwise(found)]
        return _matrix(chain, found, links, tuple(params))

    def _refuse_shortcuts(self, weights: tuple[str, ...]) -> None:
        """What can be known of a module before its first step, where `contract` looks again."""
        reason = None if self.flow is None else broken_flow(self.flow, weights)
        if reason is not None:
            raise no_chain(reason)

    def contract(self, rows: Rows) -> BlockTridiagonalMatrix:
        known = layered(rows)
        chain = self._places(known.shapes)
        reason = known.broken_chain(tuple(place.weight for place in chain))
        if reason is not None:
            raise no_chain(reason)
        each = [_products(known, place) for place in chain]
        means = [one.means() for one in each]
        links = [_link(*pair) for pair in pairwise(means)]
        found = [Factors.of(one.moments()) for one in each]
        return _matrix(chain, found, links, tuple(known.shapes))


def _matrix(
    chain: tuple[Place, ...], layers: list[Factors], links: list[Factors], names: tuple[str, ...]
) -> BlockTridiagonalMatrix:
    weights = [place.weight for place in chain]
    return BlockTridiagonalMatrix(
        chain,
        dict(zip(weights, layers, strict=True)),
        dict(zip(weights[:-1], links, strict=True)),
        names,
    )


def _products(rows: LayeredRows, place: Place) -> Products:
    found = rows.layer(place.weight, place.bias)
    if found is None:
        raise no_chain(f"{place.bias!r} is used outside of its layer")
    return found


def _no_link(a: Factors, b: Factors) -> Factors:
    return Factors(
        a.input.new_zeros(*a.input.shape[:-1], b.input.shape[-1]),
        a.output.new_zeros(*a.output.shape[:-1], b.output.shape[-1]),
        a.count,
        torch.zeros_like(a.damping),
    )


def _link(a: Means, b: Means) -> Factors:
    """The products of two neighbours' inputs (n, in) and of their gradients (V, n, out)."""
    (first, left, count), (second, right, _) = a, b
    outputs = left.flatten(-3, -2).mT @ right.flatten(-3, -2)
    return Factors.of((first.mT @ second, outputs, count))
