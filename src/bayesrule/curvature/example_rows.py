"""The rows of single examples, built from what was recorded of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.autograd.graph import Node

from bayesrule.curvature.chain import broken_chain
from bayesrule.curvature.recorder import Use
from bayesrule.matrices.layer_rows import Chunks, ProductRows
from bayesrule.types import Params


class ExampleRows:
    """Rows of V backpropagated vectors and n examples, built from layers only as far as asked."""

    def __init__(
        self,
        params: Params,
        uses: list[Use],
        grads: list[dict[int, Tensor]],
        loose: Params,
        size: int,
        end: Node | None = None,
    ) -> None:
        self._params, self._uses, self._grads = params, uses, grads
        self._loose, self._size, self._end = loose, size, end
        self._sums: Params = {}

    @cached_property
    def _users(self) -> dict[str, list[tuple[int, bool]]]:
        """The calls of each parameter: their number and whether it is the bias there."""
        users: dict[str, list[tuple[int, bool]]] = {name: [] for name in self._params}
        for i, use in enumerate(self._uses):
            for name, is_bias in ((use.weight, False), (use.bias, True)):
                if name in users and name not in self._loose:
                    users[name].append((i, is_bias))
        return users

    def _one(self, name: str, v: int) -> Tensor:
        """Rows of one parameter for one vector, (n, *shape), summed over its calls."""
        if name in self._loose:
            return self._loose[name][v]
        rows = self._params[name].new_zeros(self._size, *self._params[name].shape)
        for i, is_bias in self._users[name]:
            if i in self._grads[v]:
                layer, g = self._uses[i].call.layer, self._grads[v][i]
                rows = rows + (layer.bias_rows(g) if is_bias else layer.weight_rows(g))
        return rows

    def squares(self) -> Params:
        """`Σ_vn r²`; with a single call no rows are formed where the layer knows how."""
        return {name: self._squares(name) for name in self._params}

    def _squares(self, name: str) -> Tensor:
        users = self._users[name]
        if name in self._loose:
            return self._loose[name].square().sum((0, 1))
        if len(users) == 1 and not users[0][1]:
            i = users[0][0]
            layer = self._uses[i].call.layer
            if layer.forms_rows and len(self._grads) == 1 and i in self._grads[0]:
                squares, self._sums[name] = layer.weight_sums(self._grads[0][i])
                return squares
            found = [layer.weight_squares(g[i]) for g in self._grads if i in g]
            return sum(found[1:], found[0]) if found else torch.zeros_like(self._params[name])
        each = [self._one(name, v).square().sum(0) for v in range(len(self._grads))]
        return sum(each[1:], each[0])

    def completed(self, gradient: Params) -> Params:
        """A gradient with what `Recording.backward` left to the rows."""
        return {
            name: gradient[name] if name in gradient else self._sum(name) for name in self._params
        }

    def _sum(self, name: str) -> Tensor:
        return self._sums[name] if name in self._sums else self._one(name, 0).sum(0)

    def explain(self, name: str, gradient: Tensor) -> bool:
        """Whether the rows of a parameter add up to its gradient, up to rounding."""
        users = [self._uses[i] for i, _ in self._users[name]]
        if any(use.batch_sizes != (self._size, self._size) for use in users):
            return True  # Not by examples, and so known to be loose already.
        rows = self._one(name, 0).detach()
        scale = float(rows.abs().sum(0).max())
        error = float((rows.sum(0) - gradient).abs().max())
        # A missed call is wrong by the order of the gradient; accelerators round at a thousandth.
        return error <= scale * max(1e-2, torch.finfo(gradient.dtype).eps ** 0.5)

    def per_example(self) -> Params:
        """All rows, {name: (V, n, *shape)}."""
        vectors = range(len(self._grads))
        return {k: torch.stack([self._one(k, v) for v in vectors]) for k in self._params}

    def gram(self, weights: Params) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np`, (n, V, V), over the parameters that `weights` names."""
        parts = [self._gram(name, weight) for name, weight in weights.items()]
        return sum(parts[1:], parts[0])

    def _gram(self, name: str, weight: Tensor) -> Tensor:
        vectors, users = range(len(self._grads)), self._users[name]
        if len(users) == 1 and not users[0][1] and all(users[0][0] in g for g in self._grads):
            i = users[0][0]
            stacked = torch.stack([g[i] for g in self._grads])
            return self._uses[i].call.layer.weight_gram(stacked, weight)
        rows = torch.stack([self._one(name, v).flatten(start_dim=1) for v in vectors], dim=1)
        return (rows * weight.reshape(-1)) @ rows.mT

    # What structures with a block for each layer ask for.

    @property
    def names(self) -> Iterable[str]:
        """The parameters."""
        return self._params

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters by name."""
        return {name: tuple(value.shape) for name, value in self._params.items()}

    def only(self, names: tuple[str, ...]) -> ExampleRows:
        """The rows of the named parameters alone."""
        params = {name: self._params[name] for name in names}
        loose = {name: self._loose[name] for name in names if name in self._loose}
        return ExampleRows(params, self._uses, self._grads, loose, self._size, self._end)

    def layer(self, weight: str, bias: str | None) -> ProductRows | None:
        """The rows of a layer from its one call, None where there is no such call."""
        users = self._users[weight]
        if len(users) != 1 or users[0][1] or (bias and self._users[bias] != [(users[0][0], True)]):
            return None
        i = users[0][0]
        layer = self._uses[i].call.layer
        if not layer.is_product or not all(i in g for g in self._grads):
            return None
        stacked = torch.stack([g[i] for g in self._grads])
        products = partial(layer.products, stacked)
        return ProductRows(partial(_with_ones, products) if bias else products)

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        """Why the layers with these weights are no chain in this order, None where they are."""
        for name in weights:
            if self.layer(name, None) is None:
                return f"{name!r} is not the weight of one call of such a layer"
        return broken_chain(self._uses, self._end, weights)


def _with_ones(products: Chunks) -> Iterator[tuple[Tensor, Tensor]]:
    """The inputs with a column of ones, of which the bias is the weight."""
    for a, g in products():
        yield torch.cat([a, a.new_ones(*a.shape[:-1], 1)], dim=-1), g
