"""The gradients of single examples (rows), built from what was recorded of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.autograd.graph import Node

from bayesrule.curvature.loose_rows import LooseRows
from bayesrule.curvature.recorder import Use
from bayesrule.matrices.layer_rows import Chunks, ProductRows
from bayesrule.matrices.layout import shortcut, wrong_order
from bayesrule.tensors.vectors import in_rows, shapes_of
from bayesrule.types import Params


@dataclass(eq=False)
class ExampleRows:
    """Rows of V backpropagated vectors and n examples, formed only as far as they are needed.

    `grads` holds, for each vector, the gradients of the outputs of recorded calls, by the number of
    the call; `loose` the rows of parameters that are used in other ways.
    """

    params: Params
    uses: list[Use]
    grads: list[dict[int, Tensor]]
    loose: Mapping[str, Tensor]
    size: int
    end: Node | None = None
    _sums: Params = field(default_factory=dict, init=False)

    @cached_property
    def _users(self) -> dict[str, list[tuple[int, bool]]]:
        """The calls that use each parameter: their number, and whether it is the bias there."""
        users: dict[str, list[tuple[int, bool]]] = {name: [] for name in self.params}
        for i, use in enumerate(self.uses):
            for name, is_bias in ((use.weight, False), (use.bias, True)):
                if name in users and name not in self.loose:
                    users[name].append((i, is_bias))
        return users

    def _only_call(self, name: str) -> int | None:
        """The number of the only call that uses a parameter, as its weight; None for any other."""
        users = self._users[name]
        return users[0][0] if len(users) == 1 and not users[0][1] else None

    def _rows(self, name: str, v: int) -> Tensor:
        """The rows of one parameter for one vector, (n, *shape), summed over its calls."""
        if name in self.loose:
            return self.loose[name][v]
        rows = self.params[name].new_zeros(self.size, *self.params[name].shape)
        for i, is_bias in self._users[name]:
            if i in self.grads[v]:
                layer, g = self.uses[i].layer, self.grads[v][i]
                rows = rows + (layer.bias_rows(g) if is_bias else layer.weight_rows(g))
        return rows

    def squares(self) -> Params:
        return {name: self._squares(name) for name in self.params}

    def _squares(self, name: str) -> Tensor:
        """The squares of one parameter; a layer may know them without forming rows."""
        if name in self.loose:
            return self.loose[name].square().sum((0, 1))
        i = self._only_call(name)
        if i is None:
            squares = [self._rows(name, v).square().sum(0) for v in range(len(self.grads))]
            return sum(squares[1:], squares[0])
        layer = self.uses[i].layer
        if layer.forms_rows and len(self.grads) == 1 and i in self.grads[0]:
            total, self._sums[name] = layer.weight_sums(self.grads[0][i])
            return total
        squares = [layer.weight_squares(g[i]) for g in self.grads if i in g]
        return sum(squares[1:], squares[0]) if squares else torch.zeros_like(self.params[name])

    def completed(self, gradient: Params) -> Params:
        """A gradient, with the parts that `Recording.backward` left to the rows."""
        sums = {**self._sums, **gradient}
        return {k: sums[k] if k in sums else self._rows(k, 0).sum(0) for k in self.params}

    def explain(self, name: str, gradient: Tensor) -> bool:
        """Whether the rows of a parameter add up to its gradient, up to rounding."""
        users = [self.uses[i] for i, _ in self._users[name]]
        if any(use.batch_sizes != (self.size, self.size) for use in users):
            return True  # Its first axis is not the examples: it is loose already.
        rows = self._rows(name, 0).detach()
        scale = float(rows.abs().sum(0).max())
        error = float((rows.sum(0) - gradient).abs().max())
        # A missed call gives an error of the gradient's size; accelerators round at a thousandth of
        # it.
        eps = torch.finfo(gradient.dtype).eps
        return error <= scale * max(1e-2, eps**0.5) + 100.0 * eps * self._size_of_terms(name)

    def _size_of_terms(self, name: str) -> float:
        """The size that a gradient would have if all its terms had the same sign.

        A softmax over keys ignores their bias, whose gradient is then nothing but rounding.
        """
        total = 0.0
        for i, is_bias in self._users[name]:
            a, g = self.uses[i].layer.input, self.grads[0].get(i)
            size = 1.0 if is_bias or not a.is_floating_point() else a.detach().abs().max()
            total += 0.0 if g is None else float(g.abs().sum() * size)
        return total

    def per_example(self) -> Params:
        vectors = range(len(self.grads))
        return {k: torch.stack([self._rows(k, v) for v in vectors]) for k in self.params}

    def gram(self, weights: Params) -> Tensor:
        parts = [self._gram(name, weight) for name, weight in weights.items()]
        return sum(parts[1:], parts[0])

    def _gram(self, name: str, weight: Tensor) -> Tensor:
        i = self._only_call(name)
        if i is not None and all(i in g for g in self.grads):
            stacked = torch.stack([g[i] for g in self.grads])
            return self.uses[i].layer.weight_gram(stacked, weight)
        vectors = range(len(self.grads))
        rows = torch.stack([in_rows(self._rows(name, v), 1) for v in vectors], dim=1)
        return (rows * weight.reshape(-1)) @ rows.mT

    # Only structures with one block for each layer need the rest.

    @property
    def names(self) -> Iterable[str]:
        return self.params

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.params)

    def only(self, names: tuple[str, ...]) -> ExampleRows:
        params = {name: self.params[name] for name in names}
        loose = self.loose.only(names) if isinstance(self.loose, LooseRows) else self.loose
        return replace(self, params=params, loose=loose)

    def layer(self, weight: str, bias: str | None) -> ProductRows | None:
        i = self._only_call(weight)
        if i is None or (bias and self._users[bias] != [(i, True)]):
            return None
        layer = self.uses[i].layer
        if not layer.is_product or not all(i in g for g in self.grads):
            return None
        stacked = torch.stack([g[i] for g in self.grads])
        products = partial(layer.products, stacked)
        return ProductRows(partial(_with_ones, products) if bias else products)

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        for name in weights:
            if self.layer(name, None) is None:
                return f"{name!r} is not the weight of one call of such a layer"
        called = [use.weight for use in self.uses if use.weight in weights]
        if called != list(weights):
            return wrong_order(called)
        nodes = {use.weight: use.edge.node for use in self.uses if use.weight and use.edge}
        if self.end is None or any(name not in nodes for name in weights):
            return "some layers have no part in the outputs"
        return shortcut(weights, nodes, self.end, lambda node: [k for k, _ in node.next_functions])


def _with_ones(products: Chunks) -> Iterator[tuple[Tensor, Tensor]]:
    """The inputs with a column of ones, which the bias multiplies."""
    for a, g in products():
        yield torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1), g
