"""Gradients of single examples of each net of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.matrices.layer_rows import Means, Products
from bayesrule.tensors.chain import Linear
from bayesrule.types import Params


@dataclass(frozen=True)
class StackedProducts(Products):
    """`r_vn = g_vn a_nᵀ` of one layer of each net: inputs (num, n, in), slopes (num, V, n, out).

    `own` (num, n) tells the inputs that do not only fill up a batch; without it all count. With
    `biased` there is one input more, which is 1.
    """

    given: Tensor
    slopes: Tensor
    own: Tensor | None = None
    biased: bool = False

    def moments(self) -> tuple[Tensor, Tensor, int | Tensor]:
        slopes, inputs = self.slopes.flatten(1, 2), self._kept
        square = inputs.mT @ inputs
        if self.biased:
            # The products with ones are sums: a copy of all inputs beside ones would cost more.
            num, width = square.shape[:2]
            square, inner = square.new_empty(num, width + 1, width + 1), square
            square[:, :width, :width] = inner
            square[:, width, :width] = square[:, :width, width] = inputs.sum(1)
            square[:, width, width] = self._count
        return square, slopes.mT @ slopes, self._count

    @cached_property
    def inputs(self) -> Tensor:
        """All inputs, (num, n, in), zero where they only fill up."""
        if not self.biased:
            return self._kept
        ones = self.given.new_ones(*self.given.shape[:-1], 1)
        return torch.cat([self._kept, self._mask(ones)], dim=-1)

    @cached_property
    def _kept(self) -> Tensor:
        return self._mask(self.given)

    def _mask(self, inputs: Tensor) -> Tensor:
        return inputs if self.own is None else inputs * self.own.unsqueeze(-1)

    @cached_property
    def _count(self) -> int | Tensor:
        return self.given.shape[1] if self.own is None else self.own.sum(1)

    def means(self) -> Means:
        return self.inputs, self.slopes, self._count

    def squares(self, left: Tensor, right: Tensor) -> Tensor:
        slopes = (self.slopes @ left.unsqueeze(1)).square().sum(1)
        return slopes.mT @ (self.inputs @ right).square()

    def gram(self, left: Tensor, right: Tensor, gains: Tensor) -> Tensor:
        scale = (self.inputs @ right).square() @ gains.mT
        slopes = (self.slopes @ left.unsqueeze(1)).transpose(1, 2)
        return (slopes * scale.unsqueeze(2)) @ slopes.mT


class StackedRows:
    """Rows from layers' inputs (num, n, in) and, for V vectors, outputs' gradients (num, n, out).

    `own` (num, n) tells the examples of each net from those that only fill up, whose vectors are
    zero.
    """

    axes: ClassVar[int] = 1

    def __init__(
        self,
        layers: list[Linear],
        inputs: list[Tensor],
        slopes: list[list[Tensor]],
        own: Tensor | None = None,
    ) -> None:
        self._layers, self._inputs, self._slopes, self._own = layers, inputs, slopes, own

    def _uses(self) -> Iterator[tuple[str, int, bool]]:
        """The parameters, with the number of their layer and whether they are its bias."""
        for i, layer in enumerate(self._layers):
            for name, is_bias in ((layer.weight, False), (layer.bias, True)):
                if name is not None:
                    yield name, i, is_bias

    def _sums(
        self, weight: Callable[[Tensor, Tensor], Tensor], bias: Callable[[Tensor], Tensor]
    ) -> Params:
        """Sums over the vectors of what two functions make of a layer."""
        found: Params = {}
        for slope in self._slopes:
            for name, i, is_bias in self._uses():
                one = bias(slope[i]) if is_bias else weight(self._inputs[i], slope[i])
                found[name] = found[name] + one if name in found else one
        return found

    def squares(self) -> Params:
        """`Σ_vn r²` of each net: `(g aᵀ)² = g² (a²)ᵀ`, so no row is ever formed."""
        return self._sums(lambda a, g: g.square().mT @ a.square(), lambda g: g.square().sum(1))

    def completed(self, gradient: Params) -> Params:
        """`Σ_vn r` of each net."""
        return self._sums(lambda a, g: g.mT @ a, lambda g: g.sum(1))

    def _stacked(self, which: int) -> Tensor:
        """The gradients of a layer's outputs, (num, V, n, out)."""
        each = [slope[which] for slope in self._slopes]
        return torch.stack(each, dim=1) if len(each) > 1 else each[0].unsqueeze(1)

    def per_example(self) -> Params:
        """Those of all nets, {name: (num, V, n, *shape)}."""
        found: Params = {}
        for name, i, is_bias in self._uses():
            g = self._stacked(i)
            found[name] = g if is_bias else g.unsqueeze(-1) * self._inputs[i][:, None, :, None]
        return found

    # What structures with a block for each layer ask for.

    @property
    def names(self) -> Iterable[str]:
        return self.shapes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of one net by name."""
        layers = zip(self._slopes[0], self._inputs, strict=True)
        sizes = [(g.shape[-1], a.shape[-1]) for g, a in layers]
        return {name: sizes[i][:1] if is_bias else sizes[i] for name, i, is_bias in self._uses()}

    def only(self, names: tuple[str, ...]) -> StackedRows:
        layers = [layer.only(names) for layer in self._layers]
        return StackedRows(layers, self._inputs, self._slopes, self._own)

    def layer(self, weight: str, bias: str | None) -> StackedProducts | None:
        """The rows of a layer, None where the bias belongs to another."""
        which = [layer.weight for layer in self._layers].index(weight)
        if bias is not None and self._layers[which].bias != bias:
            return None
        slopes = self._stacked(which)
        return StackedProducts(self._inputs[which], slopes, self._own, bias is not None)

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        """None: these rows come from layers that follow each other."""
        return None


class StackedTable:
    """Rows that were formed, {name: (num, V, n, *shape)}, asked for as all `Rows` are."""

    axes: ClassVar[int] = 1

    def __init__(self, rows: Params) -> None:
        self._rows = rows

    def squares(self) -> Params:
        return {name: value.square().sum((1, 2)) for name, value in self._rows.items()}

    def completed(self, gradient: Params) -> Params:
        """`Σ_vn r` of each net."""
        return {name: value.sum((1, 2)) for name, value in self._rows.items()}

    def per_example(self) -> Params:
        return self._rows

    @property
    def names(self) -> Iterable[str]:
        return self._rows

    def only(self, names: tuple[str, ...]) -> StackedTable:
        return StackedTable({name: self._rows[name] for name in names})
