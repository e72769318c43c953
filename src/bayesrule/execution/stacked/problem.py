"""A batch for each of several nets: what is asked of one net, answered for all of them together.

Weights, inputs and targets have the nets along their first axis. No net has a part in the loss of
another, so one backward pass from all losses gives each net its own gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesrule.curvature._base import Problem
from bayesrule.execution.stacked.chain import Chain
from bayesrule.execution.stacked.rows import StackedRows, StackedTable
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.tensors.network import Inputs, Network
from bayesrule.tensors.vectors import over
from bayesrule.types import Params


@dataclass(frozen=True, kw_only=True)
class StackedProblem(Problem):
    """The problems of several nets; `scale` is a number, or one for each net, (num,).

    `own` (num, n) tells the examples of each net from those that only fill up a batch; without it
    all are its own. `chain` is the module as a chain of layers, where it is one.

    With several `draws` a chain takes weights (num, draws, *shape), and the examples of all draws
    are examples of their net: `drawn` makes such a problem.
    """

    axes: ClassVar[int] = 1

    own: Tensor | None = None
    chain: Chain | None = None
    draws: int = 1

    def drawn(self, draws: int, generator: Any) -> StackedProblem:
        """The problem at several draws of each net's weights."""
        if draws == 1:
            return self
        own = None if self.own is None else self.own.repeat(1, draws)
        y = self.y.repeat(1, draws, *[1] * (self.y.ndim - 2))
        return replace(self, y=y, own=own, draws=draws, generator=generator)

    def forward(self, params: Params) -> Tensor:
        if self.chain is None:
            return mapped(self.network, params, self.buffers, self.x)
        return self.folded(self.chain(*self.spread(params)))

    def spread(self, params: Params) -> tuple[Params, Params, Any]:
        """Weights, buffers and inputs with a net for each draw."""
        if self.draws == 1:
            return params, self.buffers, self.x
        known = {name: value.flatten(0, 1) for name, value in params.items()}
        beside = {k: v.repeat_interleave(self.draws, 0) for k, v in self.buffers.items()}
        assert isinstance(self.x, Tensor)
        return known, beside, self.x.repeat_interleave(self.draws, 0)

    def folded(self, value: Tensor) -> Tensor:
        """Numbers (num · draws, n, *) as (num, draws · n, *)."""
        return value if self.draws == 1 else value.reshape(len(self.y), -1, *value.shape[2:])

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


class _Recording:
    """One forward pass of a chain of layers, with what gradients of single examples need."""

    def __init__(self, problem: StackedProblem, params: Params) -> None:
        assert problem.chain is not None
        self._problem, self._params, chain = problem, params, problem.chain
        inputs, self._outs, outputs = chain.recorded(*problem.spread(params))
        self._inputs, self.outputs = [problem.folded(a) for a in inputs], problem.folded(outputs)
        # Frozen weights have no rows.
        self._layers = [layer.only(params) for layer in chain.layers]

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[Any, Params]:
        """Backpropagates each of `vectors` (V, num, n, *); the gradient is left to the rows."""
        each = [
            torch.autograd.grad(self.outputs, self._outs, vector, retain_graph=True)
            for vector in vectors
        ]
        slopes = [[self._problem.folded(g) for g in slope] for slope in each]
        return StackedRows(self._layers, self._inputs, slopes, self._problem.own), {}

    def gradient(self, vector: Tensor) -> Params:
        """The gradients for one vector (num, n, *) backpropagated from the outputs."""
        found = self.backward(vector.unsqueeze(0), gradient=True)[0].completed({})
        return {name: found[name] for name in self._params}


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
        return StackedTable(each(*given, vectors.transpose(0, 1))), {}

    def gradient(self, vector: Tensor) -> Params:
        """The gradients for one vector (num, n, *) backpropagated from the outputs."""
        return self.backward(vector.unsqueeze(0), gradient=True)[0].completed({})
