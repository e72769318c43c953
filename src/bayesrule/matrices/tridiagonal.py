"""Matrices over a chain of layers in which neighbouring layers are correlated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from bayesrule.matrices._base import Matrix
from bayesrule.matrices.diagonal import only_diagonal
from bayesrule.matrices.factors import Factors, Root, between, outer
from bayesrule.matrices.kronecker import Kronecker, KroneckerMatrix, OfLayers
from bayesrule.matrices.kronecker_layer import FactoredLayer
from bayesrule.matrices.layer_rows import LayerRows, MatrixRows, Means, Place, ProductRows
from bayesrule.matrices.layout import (
    Flow,
    Pair,
    broken_flow,
    by_shape,
    chain_by_module,
    flow_of,
    no_chain,
    places,
)
from bayesrule.tensors.vectors import Shapes, shapes_of
from bayesrule.types import Number, Params, Rows


@dataclass(frozen=True)
class BlockTridiagonalMatrix(Matrix):
    """`F̂` with `F̂⁻¹ = Ξᵀ Λ Ξ`, Ξ the identity with `−Ψ_i` beside it, Λ the blocks `Σ_{i|i+1}⁻¹`.

    `Ψ_i = F_{i,i+1} F_{i+1,i+1}⁻¹` and `Σ_{i|i+1} = F_ii − Ψ_i F_{i+1,i+1} Ψ_iᵀ` come from the
    blocks `F_ij = A_ij ⊗ S_ij` of each layer (`layers`, damped) and of each pair of neighbours
    (`links`, by the weight of the earlier one). Martens & Grosse (2015), sec. 4.3 and appendix B.
    """

    places: tuple[Place, ...]
    layers: dict[str, Factors]
    links: dict[str, Factors]
    names: tuple[str, ...]

    several_draws = True

    @cached_property
    def _blocks(self) -> list[FactoredLayer]:
        """The matrix of each layer alone."""
        return [FactoredLayer(place, self.layers[place.weight]) for place in self.places]

    @cached_property
    def _damped(self) -> list[tuple[Tensor, Tensor]]:
        """The damped S and A of each layer."""
        return [block.damped_factors for block in self._blocks]

    @cached_property
    def _linked(self) -> list[tuple[Tensor, Tensor]]:
        """S and A of each pair of neighbours."""
        return [(link.output, link.mean_input) for link in self.links.values()]

    @cached_property
    def _roots(self) -> list[tuple[Tensor, Tensor]]:
        """Roots of the inverses of S and of A of each layer."""
        return [(block.root.left, block.root.right) for block in self._blocks]

    @cached_property
    def _psi(self) -> list[tuple[Tensor, Tensor]]:
        """`Ψ_i = A_{i,i+1} A⁻¹ ⊗ S_{i,i+1} S⁻¹`, as the part of S and the part of A."""
        pairs = zip(self._linked, self._roots[1:], strict=True)
        return [(s @ left @ left.mT, a @ right @ right.mT) for (s, a), (left, right) in pairs]

    @cached_property
    def _conditionals(self) -> list[Root]:
        """`Σ_{i|i+1}⁻¹` of each layer; of the last one `F_LL⁻¹`."""
        pairs = zip(self._roots, self._linked, self._roots[1:], strict=False)
        return [*[_conditional(*pair) for pair in pairs], self._blocks[-1].root]

    def _joined(self, vector: Params) -> list[Tensor]:
        return [place.join(vector) for place in self.places]

    def _named(self, parts: list[Tensor], like: Params | None = None) -> Params:
        vector: Params = {}
        for place, part in zip(self.places, parts, strict=True):
            vector |= place.split(part)
        return {name: vector[name] for name in (self.names if like is None else like)}

    def _mixed(self, parts: list[Tensor]) -> list[Tensor]:
        """`Ξ x`."""
        pairs = zip(parts, self._psi, parts[1:], strict=False)
        return [*[x - s @ after @ a.mT for x, (s, a), after in pairs], parts[-1]]

    def _mixed_back(self, parts: list[Tensor]) -> list[Tensor]:
        """`Ξᵀ x`."""
        pairs = zip(parts[1:], self._psi, parts, strict=False)
        return [parts[0], *[x - between(s.mT, before, a.mT) for x, (s, a), before in pairs]]

    def matmul(self, vector: Params) -> Params:
        parts = self._joined(vector)
        for i, (s, a) in enumerate(self._psi):  # Ξ⁻ᵀ x
            parts[i + 1] = parts[i + 1] + s.mT @ parts[i] @ a
        parts = [self._spread(i, x) for i, x in enumerate(parts)]
        for i, (s, a) in reversed(list(enumerate(self._psi))):  # Ξ⁻¹ x
            parts[i] = parts[i] + s @ parts[i + 1] @ a.mT
        return self._named(parts, vector)

    def _spread(self, i: int, x: Tensor) -> Tensor:
        """`Σ_{i|i+1} x`."""
        s, a = self._damped[i]
        if i == len(self._psi):
            return s @ x @ a
        (psi_s, psi_a), (link_s, link_a) = self._psi[i], self._linked[i]
        return s @ x @ a - psi_s @ (link_s.mT @ x @ link_a) @ psi_a.mT

    def solve(self, vector: Params) -> Params:
        mixed = zip(self._conditionals, self._mixed(self._joined(vector)), strict=True)
        return self._named(self._mixed_back([root.solve(x) for root, x in mixed]), vector)

    def inv_sqrt(self, noise: Params) -> Params:
        white = zip(self._conditionals, self._joined(noise), strict=True)
        return self._named(self._mixed_back([root.draw(x) for root, x in white]), noise)

    def logdet(self) -> Tensor:
        """`Σ_i [n log|S| + m log|A| + Σ log(1 − s s')]`."""
        parts = [-root.gains.log().sum((-2, -1)) for root in self._conditionals]
        parts += [block.logdet() for block in self._blocks]
        return sum(parts[1:], parts[0])

    def diagonal(self) -> Params:
        diagonals = (map(torch.linalg.diagonal, factors) for factors in self._damped)
        return self._named([outer(*pair) for pair in diagonals])

    def _inverse_diagonals(self) -> list[Tensor]:
        diagonals = [root.diagonal() for root in self._conditionals]
        for i, (s, a) in enumerate(self._psi):
            diagonals[i + 1] = diagonals[i + 1] + self._conditionals[i].through(s, a).diagonal()
        return diagonals

    def inverse_diagonal(self) -> Params:
        return self._named(self._inverse_diagonals())

    def trace_solve(self, other: Matrix) -> Tensor:
        if isinstance(other, BlockTridiagonalMatrix):
            return self._trace_of_chain(other)
        diagonals = self._joined(only_diagonal(other, "BlockTridiagonalMatrix"))
        pairs = zip(self._inverse_diagonals(), diagonals, strict=True)
        return torch.stack([(mine * theirs).sum((-2, -1)) for mine, theirs in pairs]).sum(0)

    def _trace_of_chain(self, other: BlockTridiagonalMatrix) -> Tensor:
        """`Σ_i tr(Σ_{i|i+1}⁻¹ (Ξ P Ξᵀ)_ii)`, for which the kept blocks of P are enough."""
        traces = [
            root.trace(s, a) for root, (s, a) in zip(self._conditionals, other._damped, strict=True)
        ]
        for root, (psi_s, psi_a), (s, a), (link_s, link_a) in zip(
            self._conditionals, self._psi, other._damped[1:], other._linked, strict=False
        ):
            traces.append(-2.0 * root.trace(psi_s @ link_s.mT, psi_a @ link_a.mT))
            traces.append(root.trace(psi_s @ s @ psi_s.mT, psi_a @ a @ psi_a.mT))
        return torch.stack(traces).sum(0)

    def output_covariance(self, rows: Rows) -> Tensor:
        pairs = zip(self._conditionals, self._mixed_rows(rows), strict=True)
        parts = [x.gram(root.left, root.right, root.gains) for root, x in pairs]
        return torch.stack(parts).sum(0)

    def _mixed_rows(self, rows: Rows) -> list[LayerRows]:
        """`Ξ r` of each row; products get the next layer's share as further positions."""
        layers = [rows.layer(place.weight, place.bias) for place in self.places]
        products = [layer.whole() for layer in layers if isinstance(layer, ProductRows)]
        if len(products) < len(layers):
            tables = [place.join(rows.only(place.names).per_example()) for place in self.places]
            return [MatrixRows(x) for x in self._mixed(tables)]
        mixed = [
            (torch.cat([a, b @ right.mT], dim=1), torch.cat([g, -h @ left.mT], dim=2))
            for (a, g), (left, right), (b, h) in zip(
                products, self._psi, products[1:], strict=False
            )
        ]
        return [ProductRows.of(a, g) for a, g in [*mixed, products[-1]]]

    def _map(self, function: Callable[..., Factors], *others: Self) -> Self:
        """The matrix whose factors are a function of those of this and of other matrices."""

        def mapped(kind: str) -> dict[str, Factors]:
            mine, *theirs = (getattr(matrix, kind) for matrix in (self, *others))
            return {k: function(v, *(factors[k] for factors in theirs)) for k, v in mine.items()}

        return replace(self, layers=mapped("layers"), links=mapped("links"))

    def plus(self, other: Self) -> Self:
        return self._map(Factors.plus, other)

    def times(self, factor: Number) -> Self:
        return self._map(lambda factors: factors.times(factor))

    def damped(self, damping: float) -> Self:
        return replace(self, layers={k: v.damped(damping) for k, v in self.layers.items()})

    def lerp_(self, target: Self, rate: Number) -> Self:
        return self._map(lambda old, new: old.lerp(new, rate), target)

    def retract_(self, target: Self, rate: Number, precision: Self) -> Self:
        layers = {
            k: v.retract(target.layers[k], rate, precision.layers[k])
            for k, v in self.layers.items()
        }
        return replace(self.lerp_(target, rate), layers=layers)


def _conditional(
    roots: tuple[Tensor, Tensor], link: tuple[Tensor, Tensor], next_roots: tuple[Tensor, Tensor]
) -> Root:
    """`(A ⊗ S − C ⊗ D)⁻¹`, where C and D hold what the next layer explains of this one.

    In the bases that make A and S the identity and C and D diagonal it is `1 / (1 − s s')`.
    """
    (left, outputs), (right, inputs) = (
        _explained(*factor) for factor in zip(roots, link, next_roots, strict=True)
    )
    gains = 1.0 / (1.0 - outer(outputs, inputs)).clamp_min(torch.finfo(outputs.dtype).eps)
    return Root(roots[0] @ left, roots[1] @ right, gains, turns=(left, right))


def _explained(root: Tensor, cross: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """A basis in which what the neighbour explains of a factor is diagonal, with the diagonal.

    It is taken after the root, with which the factor itself is the identity.
    """
    white = root.mT @ cross @ other
    values, directions = torch.linalg.eigh(white @ white.mT)
    return directions, values.clamp(0.0, 1.0)


@dataclass(frozen=True)
class BlockTridiagonal(OfLayers):
    """`A ⊗ S` for each layer of a chain and for each pair of neighbours; block-tridiagonal inverse.

    Martens & Grosse (2015), sec. 4.3: of all matrices with these blocks on and beside the diagonal,
    it is the one whose inverse is zero elsewhere. It is for chains of linear and convolution
    layers; the positions of a convolution enter the products of neighbours by their mean. The
    diagonal factors are damped as in `Kronecker()`, and sums and averages are taken in the same
    way.

    - `widest`: a wider factor is refused.
    - `layers`: pairs of weight and bias in their order, which `for_model` finds; it refuses a
      module with other layers. Without them, every parameter with two axes or more is a weight.
    - `flow`: how data pass through the layers, if the module's code shows it beforehand.
    """

    widest: int = 8192
    layers: tuple[Pair, ...] | None = None
    flow: Flow | None = field(default=None, repr=False, compare=False)

    needs_layers = True

    def for_model(self, model: nn.Module) -> BlockTridiagonal:
        return replace(self, layers=chain_by_module(model), flow=flow_of(model))

    def _places(self, shapes: Shapes) -> tuple[Place, ...]:
        chain = places(by_shape(shapes) if self.layers is None else self.layers, shapes)
        taken = {name for place in chain for name in place.names}
        lost = [name for name in shapes if name not in taken]
        if lost:
            raise no_chain(f"{lost[0]!r} belongs to none with a weight that is learned")
        for place in chain:
            if max(place.size) > self.widest:
                raise ValueError(
                    f"The layer of {place.weight!r} has a factor {max(place.size):,} wide; the "
                    f"limit is {self.widest:,}. Use Kronecker(), where such a layer has a diagonal "
                    f"block, or BlockTridiagonal(widest={max(place.size)})."
                )
        return tuple(chain)

    def identity(self, params: Params, scale: float) -> BlockTridiagonalMatrix:
        return self._unlinked(params, lambda alone: alone.identity(params, scale))

    def project(self, matrix: Tensor, params: Params) -> BlockTridiagonalMatrix:
        """The positive part of each layer's block by its partial traces, without links."""
        return self._unlinked(params, lambda alone: alone.project(matrix, params))

    def _unlinked(
        self, params: Params, made: Callable[[Kronecker], KroneckerMatrix]
    ) -> BlockTridiagonalMatrix:
        """The matrix without links, from layers that are `made` one by one."""
        chain = self._places(shapes_of(params))
        weights = tuple(place.weight for place in chain)
        # Refuse before the first step what can be known by then; `contract` checks again.
        if self.flow is not None and (reason := broken_flow(self.flow, weights)):
            raise no_chain(reason)
        alone = made(Kronecker(widest=self.widest, layers=self.layers)).layers
        layers = [alone[weight].factors for weight in weights]
        links = [_no_link(*pair) for pair in pairwise(layers)]
        return _matrix(chain, layers, links, tuple(params))

    def contract(self, rows: Rows) -> BlockTridiagonalMatrix:
        chain = self._places(rows.shapes)
        reason = rows.broken_chain(tuple(place.weight for place in chain))
        if reason is not None:
            raise no_chain(reason)
        products = [rows.layer(place.weight, place.bias) for place in chain]
        if None in products:
            raise no_chain(f"{chain[products.index(None)].bias!r} is used outside of its layer")
        links = [_link(*pair) for pair in pairwise([layer.means() for layer in products])]
        layers = [Factors.of(layer.moments()) for layer in products]
        return _matrix(chain, layers, links, tuple(rows.shapes))


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
