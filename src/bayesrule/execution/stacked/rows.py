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

    `present` (num, n) marks inputs that are not padding; without it all count. With `biased` there
    is one more input, which is 1.
    """

    raw_inputs: Tensor
    slopes: Tensor
    present: Tensor | None = None
    biased: bool = False

    def moments(self) -> tuple[Tensor, Tensor, int | Tensor]:
        slopes, inputs = self.slopes.flatten(1, 2), self._masked
        square = inputs.mT @ inputs
        if self.biased:
            # Products with ones are sums, which costs less than appending ones to a copy.
            num, width = square.shape[:2]
            square, inner = square.new_empty(num, width + 1, width + 1), square
            square[:, :width, :width] = inner
            square[:, width, :width] = square[:, :width, width] = inputs.sum(1)
            square[:, width, width] = self._count
        return square, slopes.mT @ slopes, self._count

    @cached_property
    def inputs(self) -> Tensor:
        """All inputs, (num, n, in), with zeros for padding."""
        if not self.biased:
            return self._masked
        ones = self.raw_inputs.new_ones(*self.raw_inputs.shape[:-1], 1)
        return torch.cat([self._masked, self._mask(ones)], dim=-1)

    @cached_property
    def _masked(self) -> Tensor:
        return self._mask(self.raw_inputs)

    def _mask(self, inputs: Tensor) -> Tensor:
        return inputs if self.present is None else inputs * self.present.unsqueeze(-1)

    @cached_property
    def _count(self) -> int | Tensor:
        return self.raw_inputs.shape[1] if self.present is None else self.present.sum(1)

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

    `present` (num, n) marks each net's own examples; the others are padding, with zero vectors.
    """

    axes: ClassVar[int] = 1

    def __init__(
        self,
        layers: list[Linear],
        inputs: list[Tensor],
        slopes: list[list[Tensor]],
        present: Tensor | None = None,
    ) -> None:
        self._layers, self._inputs = layers, inputs
        self._slopes, self._present = slopes, present

    def _uses(self) -> Iterator[tuple[str, int, bool]]:
        """Each parameter with the number of its layer and whether it is the bias."""
        for i, layer in enumerate(self._layers):
            for name, is_bias in ((layer.weight, False), (layer.bias, True)):
                if name is not None:
                    yield name, i, is_bias

    def _sums(
        self, weight: Callable[[Tensor, Tensor], Tensor], bias: Callable[[Tensor], Tensor]
    ) -> Params:
        """Sums over the vectors of `weight(inputs, slopes)` and `bias(slopes)` of each layer."""
        sums: Params = {}
        for slope in self._slopes:
            for name, i, is_bias in self._uses():
                term = bias(slope[i]) if is_bias else weight(self._inputs[i], slope[i])
                sums[name] = sums[name] + term if name in sums else term
        return sums

    def squares(self) -> Params:
        """`Σ_vn r²` of each net: `(g aᵀ)² = g² (a²)ᵀ`, so no row is ever formed."""
        return self._sums(lambda a, g: g.square().mT @ a.square(), lambda g: g.square().sum(1))

    def completed(self, gradient: Params) -> Params:
        """`Σ_vn r` of each net."""
        return self._sums(lambda a, g: g.mT @ a, lambda g: g.sum(1))

    def _stacked(self, which: int) -> Tensor:
        """The gradients of a layer's outputs, (num, V, n, out)."""
        slopes = [slope[which] for slope in self._slopes]
        return torch.stack(slopes, dim=1) if len(slopes) > 1 else slopes[0].unsqueeze(1)

    def per_example(self) -> Params:
        """The rows of all nets, {name: (num, V, n, *shape)}."""
        rows: Params = {}
        for name, i, is_bias in self._uses():
            g = self._stacked(i)
            rows[name] = g if is_bias else g.unsqueeze(-1) * self._inputs[i][:, None, :, None]
        return rows

    # For structures with a block for each layer:

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
        return StackedRows(layers, self._inputs, self._slopes, self._present)

    def layer(self, weight: str, bias: str | None) -> StackedProducts | None:
        """The rows of a layer; None if the bias belongs to another one."""
        which = [layer.weight for layer in self._layers].index(weight)
        if bias is not None and self._layers[which].bias != bias:
            return None
        slopes = self._stacked(which)
        return StackedProducts(self._inputs[which], slopes, self._present, bias is not None)

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        """None, because the rows of a chain come from consecutive layers."""
        return None


class StackedTable:
    """Rows stored as tensors, {name: (num, V, n, *shape)}, with the interface of `Rows`."""

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
