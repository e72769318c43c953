"""A batch for each of several nets: what is asked of one net, answered for all of them together.

Weights, inputs and targets have the nets along their first axis. No net has a part in the loss of
another, so one backward pass from all losses gives each net its own gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesrule.curvature._base import Problem
from bayesrule.curvature.stacked_layers import Chain
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.network import Inputs, Network
from bayesrule.types import Params
from bayesrule.vectors import over


@dataclass(frozen=True, kw_only=True)
class StackedProblem(Problem):
    """The problems of several nets; `scale` is a number, or one for each net, (num,).

    `own` (num, n) tells the examples of each net from those that only fill up a batch; without it
    all are its own. `chain` is the module as a chain of layers, where it is one.
    """

    axes: ClassVar[int] = 1

    own: Tensor | None = None
    chain: Chain | None = None

    def forward(self, params: Params) -> Tensor:
        if self.chain is not None:
            return self.chain(params, self.buffers, self.x)
        return mapped(self.network, params, self.buffers, self.x)

    def loss(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        leaf = outputs.detach().requires_grad_()
        loss = self.nll(leaf, self.y)
        (slope,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
        return loss.detach(), slope * over(self.scale, slope)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`−Σ log p(y | f)` of each net, (num,)."""
        flat = outputs.flatten(0, 1), targets.flatten(0, 1)
        found = self.likelihood.log_prob(*flat, self._noise(outputs)).view(outputs.shape[:2])
        if self.own is not None:
            found = torch.where(self.own, found, 0.0)
        return -found.sum(1)

    def sample(self, outputs: Tensor) -> Tensor:
        flat = outputs.flatten(0, 1)
        found = self.likelihood.sample(flat, self._noise(outputs), self.generator)
        return found.unflatten(0, outputs.shape[:2])

    def fisher_vectors(self, outputs: Tensor) -> Tensor:
        flat = outputs.flatten(0, 1)
        found = self.likelihood.fisher_vectors(flat, self._noise(outputs))
        found = found.unflatten(1, outputs.shape[:2])
        return found if self.own is None else found * _beside(self.own, outputs)

    def record(self, params: Params, rotation: object = None) -> Any:
        assert rotation is None
        return _MappedRecording(self, params) if self.chain is None else _Recording(self, params)

    def statistics(self, outputs: Tensor) -> Params:
        if not self.learns_noise:
            return {}
        outputs = outputs.detach()
        flat = self.likelihood.check(outputs.flatten(0, 1), self.y.flatten(0, 1))
        targets = flat.view(outputs.shape)
        if self.own is not None:
            # What only fills up is without error.
            targets = torch.where(_beside(self.own, outputs), targets, outputs)
        # With the examples first, the nets are as many further outputs.
        found = self.likelihood.statistics(outputs.transpose(0, 1), targets.transpose(0, 1))
        return {name: value * over(self.scale, value) for name, value in found.items()}

    @cached_property
    def learns_noise(self) -> bool:
        """Whether each net has a noise of its own; otherwise it is known, or follows a schedule."""
        return learns_noise(self.likelihood)

    def _noise(self, outputs: Tensor) -> Params:
        """The noise of every example, the nets' examples one after another."""
        if not self.learns_noise:
            return {name: value[0] for name, value in self.noise.items()}
        num, n = outputs.shape[:2]
        each = {}
        for name, value in self.noise.items():
            wide = value.reshape(num, 1, *[1] * (outputs.ndim - 1 - value.ndim), *value.shape[1:])
            each[name] = wide.expand(num, n, *wide.shape[2:]).flatten(0, 1)
        return each


def learns_noise(likelihood: object) -> bool:
    """Whether a likelihood's noise depends on the data."""
    return isinstance(likelihood, GaussianLikelihood) and likelihood.noise is None


def _beside(own: Tensor, outputs: Tensor) -> Tensor:
    return own.reshape(*own.shape, *[1] * (outputs.ndim - 2))


def mapped(network: Network, params: Params, buffers: Params, x: Inputs) -> Tensor:
    """The outputs of any module, mapped over the nets; `buffers` become those after the pass."""

    def one(params: Params, buffers: Params, x: Inputs) -> tuple[Tensor, Params]:
        after = dict(buffers)
        return network(params, after, x, training=True), after

    outputs, after = vmap(one, randomness="different")(params, buffers, x)
    buffers.update(after)
    return outputs


class _Rows:
    """Gradients of single examples of each net, from layers' inputs and outputs' gradients."""

    axes = 1

    def __init__(self, layers: list[Any], inputs: list[Tensor], slopes: list[Any]) -> None:
        self._layers, self._inputs, self._slopes = layers, inputs, slopes

    def _sums(self, weight: Any, bias: Any) -> Params:
        """Sums over the vectors of what two functions make of a layer."""
        found: Params = {}
        for slope in self._slopes:
            for layer, a, g in zip(self._layers, self._inputs, slope, strict=True):
                for name, value in ((layer.weight, weight), (layer.bias, bias)):
                    if name is not None:
                        one = value(a, g)
                        found[name] = found[name] + one if name in found else one
        return found

    def squares(self) -> Params:
        """`Σ_vn r²` of each net: `(g aᵀ)² = g² (a²)ᵀ`, so no row is ever formed."""
        return self._sums(lambda a, g: g.square().mT @ a.square(), lambda a, g: g.square().sum(1))

    def completed(self, gradient: Params) -> Params:
        """`Σ_vn r` of each net."""
        return self._sums(lambda a, g: g.mT @ a, lambda a, g: g.sum(1))

    def per_example(self) -> Params:
        """The rows themselves, {name: (num, V, n, *shape)}."""
        found: Params = {}
        for i, layer in enumerate(self._layers):
            g = torch.stack([slope[i] for slope in self._slopes], dim=1)
            if layer.weight is not None:
                found[layer.weight] = g.unsqueeze(-1) * self._inputs[i][:, None, :, None]
            if layer.bias is not None:
                found[layer.bias] = g
        return found


class _Recording:
    """One forward pass of a chain of layers, with what gradients of single examples need."""

    def __init__(self, problem: StackedProblem, params: Params) -> None:
        assert problem.chain is not None
        self._params, chain = params, problem.chain
        self._inputs, self._outs, self.outputs = chain.recorded(params, problem.buffers, problem.x)
        # Frozen weights have no rows.
        self._layers = [layer.only(params) for layer in chain.layers]

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[Any, Params]:
        """Backpropagates each of `vectors` (V, num, n, *); the gradient is left to the rows."""
        slopes = [
            torch.autograd.grad(self.outputs, self._outs, vector, retain_graph=True)
            for vector in vectors
        ]
        return _Rows(self._layers, self._inputs, slopes), {}

    def gradient(self, vector: Tensor) -> Params:
        """The gradients for one vector (num, n, *) backpropagated from the outputs."""
        found = self.backward(vector.unsqueeze(0), gradient=True)[0].completed({})
        return {name: found[name] for name in self._params}


class _Table(_Rows):
    """Rows that were formed, {name: (num, V, n, *shape)}."""

    def __init__(self, rows: Params) -> None:
        self._rows = rows

    def squares(self) -> Params:
        return {name: value.square().sum((1, 2)) for name, value in self._rows.items()}

    def completed(self, gradient: Params) -> Params:
        return {name: value.sum((1, 2)) for name, value in self._rows.items()}

    def per_example(self) -> Params:
        return self._rows


class _MappedRecording:
    """Gradients of single examples of any module, by a pass for each of them."""

    def __init__(self, problem: StackedProblem, params: Params) -> None:
        self._problem, self._params = problem, params
        with torch.no_grad():
            self.outputs = problem.forward(params)

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[Any, Params]:
        """Backpropagates each of `vectors` (V, num, n, *); the gradient is left to the rows."""
        network = self._problem.network

        def pull(params: Params, buffers: Params, x: Any, vector: Tensor) -> Tensor:
            one = x.unsqueeze(0) if isinstance(x, Tensor) else tuple(p.unsqueeze(0) for p in x)
            out = network(params, buffers, one, training=True)
            return (out.squeeze(0) * vector).sum()

        examples = vmap(grad(pull), (None, None, 0, 0))
        each = vmap(vmap(examples, (None, None, None, 0)))
        given = self._params, self._problem.buffers, self._problem.x
        return _Table(each(*given, vectors.transpose(0, 1))), {}

    def gradient(self, vector: Tensor) -> Params:
        """The gradients for one vector (num, n, *) backpropagated from the outputs."""
        return self.backward(vector.unsqueeze(0), gradient=True)[0].completed({})
