"""Rows: the gradients of single examples, from one forward pass of an unmodified module.

While the module runs, calls of known layers are recorded with their inputs; a backward pass then
gives the gradients of their outputs, from which `layers` builds squares, products or the rows
themselves. A parameter that is used in any other way goes through `vmap`, so that nothing is
silently wrong: tied weights, weight norm, recurrent layers and arithmetic on weights included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.layers import LAYERS, Call
from bayesrule.network import Inputs, Network, forked_randomness, num_examples, take
from bayesrule.types import Params


@dataclass(frozen=True)
class Use:
    """One recorded call: which parameters it had and where the gradient of its output arrives."""

    call: Call
    weight: str | None
    bias: str | None
    edge: GradientEdge | None
    batch_sizes: tuple[int, int]


class Recorder(TorchFunctionMode):
    """Notes every call of a known layer, and every parameter that is used in any other way."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in params.items()}
        self.uses: list[Use] = []
        self.loose: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        touched = self._touched((*args, *kwargs.values()))
        if not touched or not _is_computation(out):
            return out
        call = LAYERS[func](*args, **kwargs) if func in LAYERS else None
        if call is None:
            self.loose.update(touched)
            return out
        edge = get_gradient_edge(out) if out.requires_grad else None
        names = self._name(call.weight), self._name(call.bias)
        self.loose.update(touched.difference(names))
        self.uses.append(Use(call, *names, edge, (len(call.layer.input), len(out))))
        return out

    def _name(self, value: Tensor | None) -> str | None:
        return None if value is None else self._names.get(id(value))

    def _touched(self, args: Iterable[Any]) -> set[str]:
        found = set()
        for arg in args:
            if isinstance(arg, Tensor):
                name = self._names.get(id(arg))
                if name is not None:
                    found.add(name)
            elif isinstance(arg, list | tuple):
                found |= self._touched(arg)
        return found


def _is_computation(out: Any) -> bool:
    """Whether a call gave tensors (and not a shape, a type or a flag)."""
    if isinstance(out, Tensor):
        return True
    return isinstance(out, list | tuple) and any(_is_computation(part) for part in out)


class Forward(Protocol):
    """What a recording needs to know of a forward pass."""

    network: Network
    buffers: Params
    x: Inputs
    training: bool

    def forward(self, params: Params) -> Tensor:
        """The outputs at the given weights."""


class Recording:
    """One forward pass with what is needed to take gradients of single examples from it."""

    def __init__(self, forward: Forward, params: Params) -> None:
        self.params = {name: value.detach().requires_grad_() for name, value in params.items()}
        self._network, self._training, self._x = forward.network, forward.training, forward.x
        # The module may move its statistics in place; single examples see those from before.
        self._before = {name: value.clone() for name, value in forward.buffers.items()}
        recorder = Recorder(self.params)
        with recorder:
            self.outputs = forward.forward(self.params)
        self.size = num_examples(self._x)
        self._uses = recorder.uses
        self._loose = recorder.loose | self._not_batched()

    def _not_batched(self) -> set[str]:
        """Parameters of layers whose first axis does not hold the examples.

        An axis of the right length may still be another one, so two further batch sizes are tried;
        the answer is a property of the module and is kept with it.
        """
        known = self._network.batch_first
        if known is None or len(known) != len(self._uses):
            known = self._network.batch_first = self._probe()
        names = set()
        for use, good in zip(self._uses, known, strict=True):
            if not good or use.batch_sizes != (self.size, self.size):
                names |= {name for name in (use.weight, use.bias) if name is not None}
        return names

    def _probe(self) -> list[bool]:
        good = [True] * len(self._uses)
        params = {name: value.detach() for name, value in self.params.items()}
        for size in (2, 3):
            rows = torch.arange(size) % self.size
            recorder = Recorder(params)
            buffers = {name: value.clone() for name, value in self._before.items()}
            # A module's own draws here must not shift those of the step, so they get their own seed.
            device = self.outputs.device
            with torch.no_grad(), forked_randomness(device, 0), recorder:
                self._network(params, buffers, take(self._x, rows), training=self._training)
            if len(recorder.uses) != len(good):
                return [False] * len(good)
            sizes = [use.batch_sizes == (size, size) for use in recorder.uses]
            good = [a and b for a, b in zip(good, sizes, strict=True)]
        return good

    def gradient(self, vector: Tensor) -> Params:
        """The gradient for one vector (n, *) backpropagated from the outputs."""
        wanted = list(self.params.values())
        found = torch.autograd.grad(
            self.outputs, wanted, vector, retain_graph=True, materialize_grads=True
        )
        return dict(zip(self.params, found, strict=True))

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[ExampleRows, Params]:
        """Backpropagates each of `vectors` (V, n, *) from the outputs.

        Returns the rows, and, where asked for, the gradient summed over examples and vectors.
        """
        live = [i for i, use in enumerate(self._uses) if use.edge is not None]
        edges = [self._uses[i].edge for i in live]
        wanted = list(self.params.values()) if gradient else []
        grads: list[dict[int, Tensor]] = []
        total: list[Tensor] = [torch.zeros_like(value) for value in wanted]
        for vector in vectors:
            found = torch.autograd.grad(
                self.outputs, [*wanted, *edges], vector, retain_graph=True, allow_unused=True
            )
            total = [t if f is None else t + f for t, f in zip(total, found, strict=False)]
            late = zip(live, found[len(wanted) :], strict=True)
            grads.append({i: g for i, g in late if g is not None})
        named = dict(zip(self.params, total, strict=True)) if gradient else {}
        loose = self._vmap_rows(vectors)
        return ExampleRows(self.params, self._uses, grads, loose, self.size), named

    def _vmap_rows(self, vectors: Tensor) -> Params:
        """Rows of loose parameters, {name: (V, n, *shape)}, by a pass for each example."""
        if not self._loose:
            return {}
        fixed = {k: v.detach() for k, v in self.params.items() if k not in self._loose}
        loose = {k: v.detach() for k, v in self.params.items() if k in self._loose}

        def pull(chosen: Params, x: Any, vector: Tensor) -> Tensor:
            one = x.unsqueeze(0) if isinstance(x, Tensor) else tuple(p.unsqueeze(0) for p in x)
            out = self._network({**fixed, **chosen}, self._before, one, training=self._training)
            return (out.squeeze(0) * vector).sum()

        each = vmap(grad(pull), in_dims=(None, 0, 0), randomness="different")
        try:
            rows = [each(loose, self._x, vector) for vector in vectors]
        except (RuntimeError, ValueError) as problem:
            raise ValueError(
                f"No gradient of single examples for {', '.join(sorted(loose))}: {problem} "
                "Batch norm in training mode and some recurrent layers mix or hide examples; "
                "group or layer norm, or a curvature that needs no single examples "
                "(SquaredGradient(), Price()), work."
            ) from problem
        return {name: torch.stack([row[name] for row in rows]) for name in loose}


class ExampleRows:
    """Rows of V backpropagated vectors and n examples, built from layers only as far as asked."""

    def __init__(
        self,
        params: Params,
        uses: list[Use],
        grads: list[dict[int, Tensor]],
        loose: Params,
        size: int,
    ) -> None:
        self._params, self._uses, self._grads = params, uses, grads
        self._loose, self._size = loose, size

    @cached_property
    def _users(self) -> dict[str, list[tuple[int, bool]]]:
        """The calls of each parameter: their number and whether it is the bias there."""
        users: dict[str, list[tuple[int, bool]]] = {name: [] for name in self._params}
        for i, use in enumerate(self._uses):
            for name, is_bias in ((use.weight, False), (use.bias, True)):
                if name is not None and name not in self._loose:
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
        """`Σ_vn r²`; a parameter with one call never has its rows formed where a layer knows how."""
        return {name: self._squares(name) for name in self._params}

    def _squares(self, name: str) -> Tensor:
        users = self._users[name]
        if name in self._loose:
            return self._loose[name].square().sum((0, 1))
        if len(users) == 1 and not users[0][1]:
            i = users[0][0]
            layer = self._uses[i].call.layer
            found = [layer.weight_squares(g[i]) for g in self._grads if i in g]
            return sum(found[1:], found[0]) if found else torch.zeros_like(self._params[name])
        each = [self._one(name, v).square().sum(0) for v in range(len(self._grads))]
        return sum(each[1:], each[0])

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
