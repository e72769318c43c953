"""The problem of a stack: a batch for each of several nets, evaluated for all nets together.

Weights, inputs and targets have the nets along their first axis. No net affects another net's loss,
so one backward pass from the sum of the losses gives each net its own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesrule.curvature import Problem, Wanted
from bayesrule.curvature._base import Innovation
from bayesrule.execution.stacked.draws import drawn_at_once, several_points
from bayesrule.execution.stacked.rows import StackedRows, StackedTable
from bayesrule.expectations import Expectation
from bayesrule.likelihoods._uncertain import (
    EXAMPLE_WEIGHT,
    as_observed,
    as_uncertain_as,
    observed,
)
from bayesrule.likelihoods._weighted import split, times
from bayesrule.moments import Activations
from bayesrule.posteriors import Point, Posterior
from bayesrule.tensors.chain import Chain
from bayesrule.tensors.inputs import Inputs, mapped, take
from bayesrule.tensors.vectors import over, scale
from bayesrule.types import Params


@dataclass(frozen=True, kw_only=True)
class StackedProblem(Problem):
    """The problems of several nets; `scale` is a number, or one for each net, (num,).

    `present` (num, n) marks each net's own examples; the others are padding, and without it there
    is none. `chain` is the module as a chain of layers, if it is one.

    With `at_once` > 1 draws, a chain takes weights (num, draws, *shape), and the examples of all
    draws count as examples of their net: `drawn` makes such a problem.
    """

    axes: ClassVar[int] = 1

    present: Tensor | None = None
    chain: Chain | None = None
    at_once: int = 1

    def points(
        self, expectation: Expectation, posterior: Posterior, wanted: Wanted
    ) -> Iterator[tuple[Problem, Point]]:
        curvature = wanted.curvature
        # The curvature reads weights alone, or handles several draws by one product.
        several = curvature.of_weights or (
            curvature.needs_draws and drawn_at_once(expectation, posterior)
        )
        if self.chain is None or not several:
            yield from super().points(expectation, posterior, wanted)
            return
        for point in several_points(expectation, posterior, self.draws, wanted):
            yield self.drawn(point.num_draws), point

    def drawn(self, draws: int) -> StackedProblem:
        """The problem at several draws of each net's weights."""
        if draws == 1:
            return self
        present = None if self.present is None else self.present.repeat(1, draws)
        y = self.y.repeat(1, draws, *[1] * (self.y.ndim - 2))
        targets = self.targets.again(len(self.y), draws)
        # The scale stays that of the original batch, whose examples are only repeated.
        return replace(self, y=y, present=present, at_once=draws, targets=targets)

    def forward(self, params: Params) -> Tensor:
        if self.chain is not None:
            return self.folded(self.chain(*self.spread(params)))

        def single(params: Params, buffers: Params, x: Inputs) -> tuple[Tensor, Params]:
            after = dict(buffers)
            return self.network(params, after, x, training=True), after

        outputs, after = vmap(single, randomness="different")(params, self.buffers, self.x)
        self.buffers.update(after)
        return outputs

    def spread(self, params: Params) -> tuple[Params, Params, Any]:
        """Weights, buffers and inputs as if each draw were a net of its own."""
        if self.at_once == 1:
            return params, self.buffers, self.x
        weights = {name: value.flatten(0, 1) for name, value in params.items()}
        buffers = {k: v.repeat_interleave(self.at_once, 0) for k, v in self.buffers.items()}
        assert isinstance(self.x, Tensor)
        return weights, buffers, self.x.repeat_interleave(self.at_once, 0)

    def folded(self, value: Tensor) -> Tensor:
        """Reshapes (num · draws, n, *) to (num, draws · n, *)."""
        return value if self.at_once == 1 else value.reshape(len(self.y), -1, *value.shape[2:])

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`−Σ log p(y | f)` of each net, (num,)."""
        values, weight = split(targets)
        flat = outputs.flatten(0, 1), values.flatten(0, 1)
        log_prob = self.likelihood.log_prob(*flat, self._noise(outputs))
        log_prob = times(log_prob.unflatten(0, outputs.shape[:2]), weight)
        log_prob = log_prob.flatten(2).sum(2) if log_prob.ndim > 2 else log_prob
        if self.present is not None:
            log_prob = torch.where(self.present, log_prob, 0.0)
        return -log_prob.sum(1)

    def sample(self, outputs: Tensor) -> Tensor:
        flat = outputs.flatten(0, 1)
        drawn = self.likelihood.sample(flat, self._with_targets(outputs), self.targets)
        return as_uncertain_as(self.y, drawn.unflatten(0, outputs.shape[:2]))

    def fisher_vectors(self, outputs: Tensor) -> Tensor:
        flat = outputs.flatten(0, 1)
        vectors = self.likelihood.fisher_vectors(flat, self._with_targets(outputs))
        vectors = vectors.unflatten(1, outputs.shape[:2])
        weight = split(self.y)[1]
        vectors = vectors if weight is None else times(vectors, weight.sqrt(), axis=1)
        return vectors if self.present is None else vectors * _beside(self.present, outputs)

    def record(self, point: Point) -> Any:
        return _MappedRecording(self, point) if self.chain is None else _Recording(self, point)

    def statistics(self, outputs: Tensor) -> Params:
        if not self.likelihood.learns:
            return {}
        outputs = outputs.detach()
        values, weight = split(self.y)
        flat = self.likelihood.check(outputs.flatten(0, 1), values.flatten(0, 1))
        targets = flat.reshape(outputs.shape)
        if self.present is not None:
            # Padding has no error.
            targets = torch.where(_beside(self.present, outputs), targets, outputs)
        # With examples along the first axis, the nets count as further outputs.
        by_example = outputs.transpose(0, 1), targets.transpose(0, 1)
        state = _widened(self.likelihood_state, outputs.ndim - 1)
        if weight is not None:
            counted = weight if self.present is None else weight * self.present
            state = {**state, EXAMPLE_WEIGHT: counted.mT}
        return scale(self.likelihood.expected_statistics(*by_example, state), self.scale)

    def learned(self, statistics: Params) -> Params:
        """The likelihoods' states of all nets, from statistics (num, *outputs)."""
        state = self.likelihood_state
        if not state:
            return {}
        if not statistics:
            # The state does not depend on data (a schedule's), so it is the same for all nets.
            first = {name: value[0] for name, value in state.items()}
            new = self.likelihood.update(first, {}, self.num_data)
            return {name: value.expand(len(self.y)).clone() for name, value in new.items()}
        statistics = {k: v * over(self.temperature, v) for k, v in statistics.items()}
        like = next(iter(statistics.values()))
        if all(value.ndim < like.ndim for value in state.values()):
            # The first step: only the update of a single net knows which parts outputs share.
            axis = 0 if isinstance(self.num_data, Tensor) else None
            return vmap(self.likelihood.update, (0, 0, axis))(state, statistics, self.num_data)
        wide = _widened(state, like.ndim)
        statistics = _widened(statistics, like.ndim)
        new = self.likelihood.update(wide, statistics, over(self.num_data, like))
        return {name: value.reshape(state[name].shape) for name, value in new.items()}

    def _single(self, state: Params, buffers: Params, x: Any, y: Tensor) -> Problem:
        """The problem of one net, with what moment propagation needs."""
        parts = self.network, self.likelihood, state, buffers, x, y, self.targets
        return Problem(*parts, temperature=self.temperature, training=self.training)

    def innovations(self, mean: Params, variance: Params, activations: Activations) -> Innovation:
        y, extras = observed(self.y, {})

        def of_net(mean: Params, variance: Params, *net: Any) -> tuple[Innovation, Params]:
            state, buffers, x, targets, spread = net
            single = self._single(state, buffers, x, as_observed(targets, spread))
            return single.innovations(mean, variance, activations), single.buffers

        nets = mean, variance, self.likelihood_state, dict(self.buffers), self.x, y, extras
        innovations, after = torch.vmap(of_net)(*nets)
        self.buffers.update(after)
        return innovations

    def explain(
        self, mean: Params, variance: Params, activations: Activations, sound: Tensor
    ) -> None:
        """Raises an error that explains the non-finite numbers of the first net that has any."""
        which = int((~sound).nonzero()[0])

        def of_net(params: Params) -> Params:
            return {name: value[which] for name, value in params.items()}

        single = self._single({}, of_net(self.buffers), take(self.x, which), self.y[which])
        try:
            single.explain(of_net(mean), of_net(variance), activations, sound)
        except (ValueError, FloatingPointError) as problem:
            raise type(problem)(f"Net {which}: {problem}") from problem

    def _with_targets(self, outputs: Tensor) -> Params:
        """The noise of every example, and the variance of its targets, if they have one."""
        _, extras = observed(split(self.y)[0], {})
        return self._noise(outputs) | {name: value.flatten(0, 1) for name, value in extras.items()}

    def _noise(self, outputs: Tensor) -> Params:
        """The likelihood's state for every example, net after net."""
        if not self.likelihood.learns:
            return {name: value[0] for name, value in self.likelihood_state.items()}
        num, n = outputs.shape[:2]
        by_example = {}
        for name, value in self.likelihood_state.items():
            wide = value.reshape(num, 1, *[1] * (outputs.ndim - 1 - value.ndim), *value.shape[1:])
            by_example[name] = wide.expand(num, n, *wide.shape[2:]).flatten(0, 1)
        return by_example


def _widened(state: Params, ndim: int) -> Params:
    """Appends axes of length one until each tensor has `ndim` axes."""
    return {k: v.reshape(*v.shape, *[1] * (ndim - v.ndim)) for k, v in state.items()}


def _beside(present: Tensor, outputs: Tensor) -> Tensor:
    """The mask (num, n), reshaped to broadcast against outputs (num, n, *)."""
    return present.reshape(*present.shape, *[1] * (outputs.ndim - 2))


class _Recording:
    """One forward pass of a chain of layers, recorded for gradients of single examples."""

    def __init__(self, problem: StackedProblem, point: Point) -> None:
        assert problem.chain is not None
        params = point.plain
        self._problem, self._point, self._params, chain = problem, point, params, problem.chain
        inputs, self._outs, outputs = chain.recorded(*problem.spread(params))
        self._inputs, self.outputs = [problem.folded(a) for a in inputs], problem.folded(outputs)
        # Frozen weights have no rows.
        self._layers = [layer.only(params) for layer in chain.layers]

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[Any, Params]:
        """Backpropagates each of `vectors` (V, num, n, *); the rows complete the gradient."""
        grads = [
            torch.autograd.grad(self.outputs, self._outs, vector, retain_graph=True)
            for vector in vectors
        ]
        slopes = [[self._problem.folded(g) for g in grad] for grad in grads]
        return StackedRows(self._layers, self._inputs, slopes, self._problem.present), {}

    def gradient(self, vector: Tensor) -> Params:
        """The gradients for one vector (num, n, *) backpropagated from the outputs."""
        sums = self.backward(vector.unsqueeze(0), gradient=True)[0].completed({})
        return self._point.seen({name: sums[name] for name in self._params})


class _MappedRecording(_Recording):
    """Gradients of single examples of any module, by a mapped pass for each example."""

    def __init__(self, problem: StackedProblem, point: Point) -> None:
        self._problem, self._point, self._params = problem, point, point.plain
        with torch.no_grad():
            self.outputs = problem.forward(self._params)

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[Any, Params]:
        network = self._problem.network

        def pull(params: Params, buffers: Params, x: Any, vector: Tensor) -> Tensor:
            batch = mapped(x, lambda part: part.unsqueeze(0))
            out = network(params, buffers, batch, training=True)
            return (out.squeeze(0) * vector).sum()

        over_examples = vmap(grad(pull), (None, None, 0, 0))
        over_nets = vmap(vmap(over_examples, (None, None, None, 0)))
        args = self._params, self._problem.buffers, self._problem.x
        return StackedTable(over_nets(*args, vectors.transpose(0, 1))), {}
