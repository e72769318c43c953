"""The matrix whose inverse is block-tridiagonal over a chain of layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.matrices._base import Matrix
from bayesrule.matrices.diagonal import only_diagonal
from bayesrule.matrices.factors import (
    Factors,
    Root,
    between,
    diagonals,
    inverse_root,
    outer,
    quadratic,
)
from bayesrule.matrices.kronecker_layer import no_price
from bayesrule.matrices.layer_rows import (
    LayeredRows,
    LayerRows,
    MatrixRows,
    Place,
    ProductRows,
    layered,
)
from bayesrule.types import Params, Rows


@dataclass(frozen=True)
class BlockTridiagonalMatrix(Matrix):
    """`F̂` with `F̂⁻¹ = Ξᵀ Λ Ξ`, Ξ the identity and `−Ψ_i` beside it, Λ the blocks `Σ_{i|i+1}⁻¹`.

    `Ψ_i = F_{i,i+1} F_{i+1,i+1}⁻¹` and `Σ_{i|i+1} = F_ii − Ψ_i F_{i+1,i+1} Ψ_iᵀ` from the blocks
    `F_ij = A_ij ⊗ S_ij` of each layer (`layers`, damped) and of neighbours (`links`, by the weight
    of the earlier one). Martens & Grosse (2015), sec. 4.3 and appendix B.
    """

    places: tuple[Place, ...]
    layers: dict[str, Factors]
    links: dict[str, Factors]
    names: tuple[str, ...]

    several_draws = True

    @cached_property
    def _damped(self) -> list[tuple[Tensor, Tensor]]:
        """S and A of each layer, damped."""
        return [self.layers[place.weight].damped_factors() for place in self.places]

    @cached_property
    def _linked(self) -> list[tuple[Tensor, Tensor]]:
        """S and A of each pair of neighbours."""
        return [(link.output, link.mean_input) for link in self.links.values()]

    @cached_property
    def _roots(self) -> list[tuple[Tensor, Tensor]]:
        """Roots of the inverses of S and of A of each layer."""
        whose = [f"the layer of {place.weight!r}" for place in self.places]
        pairs = zip(self._damped, whose, strict=True)
        return [(inverse_root(s, name), inverse_root(a, name)) for (s, a), name in pairs]

    @cached_property
    def _psi(self) -> list[tuple[Tensor, Tensor]]:
        """`Ψ_i = A_{i,i+1} A⁻¹ ⊗ S_{i,i+1} S⁻¹`, that of S first."""
        pairs = zip(self._linked, self._roots[1:], strict=True)
        return [(s @ left @ left.mT, a @ right @ right.mT) for (s, a), (left, right) in pairs]

    @cached_property
    def _conditionals(self) -> list[Root]:
        """`Σ_{i|i+1}⁻¹` of each layer; of the last one `F_LL⁻¹`."""
        inner = [
            _conditional(mine, link, after)
            for mine, link, after in zip(self._roots, self._linked, self._roots[1:], strict=False)
        ]
        return [*inner, Root.of(*self._roots[-1])]

    def _joined(self, vector: Params) -> list[Tensor]:
        return [place.join(vector) for place in self.places]

    def _named(self, parts: list[Tensor], like: Params | None = None) -> Params:
        found: Params = {}
        for place, part in zip(self.places, parts, strict=True):
            found |= place.split(part)
        return {name: found[name] for name in (self.names if like is None else like)}

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
        for place, roots in zip(self.places, self._roots, strict=True):
            outputs, inputs = (diagonals(root).abs().log().sum(-1) for root in roots)
            out, wide = place.size
            parts.append(-2.0 * (wide * outputs + out * inputs))
        return sum(parts[1:], parts[0])

    def diagonal(self) -> Params:
        return self._named([outer(diagonals(s), diagonals(a)) for s, a in self._damped])

    def _inverse_diagonals(self) -> list[Tensor]:
        found = [root.diagonal() for root in self._conditionals]
        for i, (s, a) in enumerate(self._psi):
            found[i + 1] = found[i + 1] + self._conditionals[i].through(s, a).diagonal()
        return found

    def inverse_diagonal(self) -> Params:
        return self._named(self._inverse_diagonals())

    def trace_solve(self, other: Matrix) -> Tensor:
        if isinstance(other, BlockTridiagonalMatrix):
            return self._trace_of_chain(other)
        known = self._joined(only_diagonal(other, "BlockTridiagonalMatrix"))
        pairs = zip(self._inverse_diagonals(), known, strict=True)
        return torch.stack([(mine * theirs).sum((-2, -1)) for mine, theirs in pairs]).sum(0)

    def _trace_of_chain(self, other: BlockTridiagonalMatrix) -> Tensor:
        """`Σ_i tr(Σ_{i|i+1}⁻¹ (Ξ P Ξᵀ)_ii)`: no other blocks of P than the known ones enter."""
        traces = [
            _trace(root, s, a)
            for root, (s, a) in zip(self._conditionals, other._damped, strict=True)
        ]
        for root, (psi_s, psi_a), (s, a), (link_s, link_a) in zip(
            self._conditionals, self._psi, other._damped[1:], other._linked, strict=False
        ):
            traces.append(-2.0 * _trace(root, psi_s @ link_s.mT, psi_a @ link_a.mT))
            traces.append(_trace(root, psi_s @ s @ psi_s.mT, psi_a @ a @ psi_a.mT))
        return torch.stack(traces).sum(0)

    def output_covariance(self, rows: Rows) -> Tensor:
        pairs = zip(self._conditionals, self._mixed_rows(layered(rows)), strict=True)
        parts = [x.gram(root.left, root.right, root.gains) for root, x in pairs]
        return torch.stack(parts).sum(0)

    def _mixed_rows(self, rows: LayeredRows) -> list[LayerRows]:
        """`Ξ r` of each row; of products, what the next layer tells is at further positions."""
        known = [rows.layer(place.weight, place.bias) for place in self.places]
        products = [one.whole() for one in known if isinstance(one, ProductRows)]
        if len(products) < len(known):
            tables = [place.join(rows.only(place.names).per_example()) for place in self.places]
            return [MatrixRows(x) for x in self._mixed(tables)]
        told = [
            (torch.cat([a, b @ right.mT], dim=1), torch.cat([g, -h @ left.mT], dim=2))
            for (a, g), (left, right), (b, h) in zip(
                products, self._psi, products[1:], strict=False
            )
        ]
        return [ProductRows.of(a, g) for a, g in [*told, products[-1]]]

    def _with(
        self, layers: dict[str, Factors], links: dict[str, Factors]
    ) -> BlockTridiagonalMatrix:
        return replace(self, layers=layers, links=links)

    def plus(self, other: BlockTridiagonalMatrix) -> BlockTridiagonalMatrix:
        return self._with(
            {k: v.plus(other.layers[k]) for k, v in self.layers.items()},
            {k: v.plus(other.links[k]) for k, v in self.links.items()},
        )

    def times(self, factor: float | Tensor) -> BlockTridiagonalMatrix:
        return self._with(
            {k: v.times(factor) for k, v in self.layers.items()},
            {k: v.times(factor) for k, v in self.links.items()},
        )

    def damped(self, damping: float) -> BlockTridiagonalMatrix:
        return self._with({k: v.damped(damping) for k, v in self.layers.items()}, self.links)

    def lerp(self, target: BlockTridiagonalMatrix, rate: float | Tensor) -> BlockTridiagonalMatrix:
        return self._with(
            {k: v.lerp(target.layers[k], rate) for k, v in self.layers.items()},
            {k: v.lerp(target.links[k], rate) for k, v in self.links.items()},
        )

    def retract(
        self,
        target: BlockTridiagonalMatrix,
        rate: float | Tensor,
        precision: BlockTridiagonalMatrix,
    ) -> BlockTridiagonalMatrix:
        layers = {
            k: v.retract(target.layers[k], rate, precision.layers[k])
            for k, v in self.layers.items()
        }
        return self._with(layers, {k: v.lerp(target.links[k], rate) for k, v in self.links.items()})

    def price(self, offset: Params, gradient: Params) -> BlockTridiagonalMatrix:
        raise no_price("BlockTridiagonal()")


def _conditional(
    mine: tuple[Tensor, Tensor], link: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
) -> Root:
    """`(A ⊗ S − C ⊗ D)⁻¹`, with what the next layer tells of this one in C and D.

    In the bases that make A and S the identity and C and D diagonal it is `1 / (1 − s s')`.
    """
    (left, outputs), (right, inputs) = (
        _told(root, cross, other) for root, cross, other in zip(mine, link, after, strict=True)
    )
    gains = 1.0 / (1.0 - outer(outputs, inputs)).clamp_min(torch.finfo(outputs.dtype).eps)
    return Root(mine[0] @ left, mine[1] @ right, gains, turns=(left, right))


def _told(root: Tensor, cross: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """A basis in which the part of a factor that is told by its neighbour is diagonal.

    It is seen behind the root, where the factor itself is the identity.
    """
    white = root.mT @ cross @ other
    values, directions = torch.linalg.eigh(white @ white.mT)
    return directions, values.clamp(0.0, 1.0)


def _trace(root: Root, s: Tensor, a: Tensor) -> Tensor:
    """`tr(P⁻¹ (A ⊗ S))` for factors that need not be symmetric."""
    seen = outer(quadratic(root.left, s), quadratic(root.right, a))
    return (root.gains * seen).sum((-2, -1))
