"""A step compiled into few kernels, for learners whose step is arithmetic without randomness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from bayesrule.execution.stacked.stack import Stacked
from bayesrule.learner import Learner, check_batch
from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import Gaussian
from bayesrule.rules import Conditioning
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.vectors import apart
from bayesrule.types import Batch, Derivatives, Info, Params, State

Tensors = list[Tensor]
_Parts = tuple[Params, Params, Params, Params]

# On a CPU a value that took several operations is better stored than computed once more by each
# of its users, as the compiler would have it: pooling looks at each value of a ReLU nine times.
_CPU_OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 4, "realize_reads_threshold": 2}


@dataclass(frozen=True)
class _Plan:
    """A compiled step for batches of one shape; `learned` names what the likelihood learns from.

    On a GPU the step is a graph that is replayed on tensors that stay where they are.
    """

    run: Callable[..., Tensors]
    key: object
    learned: list[str]
    graph: torch.cuda.CUDAGraph | None = None
    static: Tensors | None = None
    results: Tensors | None = None


class Fused:
    """The steps of a `tagi` learner, traced once for a shape of batch and compiled.

    The same numbers as those of `learner.step` up to rounding, in fewer passes over memory; on a
    GPU each step is replayed as one CUDA graph. Compiling takes from seconds (a small net) to a
    minute (ResNet-18), so it pays for long trainings. Batches of another shape than the first, such
    as the last of an epoch, go through `learner.step`. `Stacked` nets can be compiled too. The old
    state's memory is used again unless `donate=False`. `backend` is one of torch.compile's; its
    default needs a C++ compiler.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> learner = tagi(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=10)
    >>> step = Fused(learner, backend="eager").step
    >>> state, info = step(learner.init(), (torch.ones(5, 2), torch.ones(5, 1)))
    """

    def __init__(self, learner: Learner | Stacked, backend: str = "inductor") -> None:
        inner = learner.learner if isinstance(learner, Stacked) else learner
        if not isinstance(inner.rule, Conditioning):
            raise TypeError(
                "Fused steps are for learners whose step is closed form without randomness, such "
                f"as tagi; this one has the rule {type(inner.rule).__name__}. Use learner.step."
            )
        self.learner, self.backend = inner, backend
        self._stack = learner if isinstance(learner, Stacked) else None
        self._plan: _Plan | None = None
        self._last: tuple[State, _Parts, Tensors] | None = None

    @torch.no_grad()
    def step(self, state: State, batch: Batch, *, donate: bool = True) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step."""
        x, y = batch
        if type(x) is not Tensor:
            raise TypeError("Fused steps take one plain tensor as inputs; use learner.step.")
        size = check_batch(x, y) if self._stack is None else self._stack.size(x, y)
        if not donate:
            state = tree.map_tensors(state, torch.clone)
        parts, flat = self._taken_apart(state)
        key = _key(x), _key(y)
        if self._plan is None:
            self._plan = self._planned(parts, [x, y, *flat], size, key)
        plan = self._plan
        if plan.key != key:
            return (self._stack or self.learner).step(state, batch, donate=True)
        found = plan.run(x, y, *flat) if plan.graph is None else _replay(plan, [x, y, *flat])
        return self._next(state, parts, plan, found, size)

    def _taken_apart(self, state: State) -> tuple[_Parts, Tensors]:
        """A state's tensors by name and in a row; those of the last step's state are known."""
        if self._last is not None and self._last[0] is state:
            return self._last[1:]
        assert isinstance(state.posterior, Gaussian)
        assert isinstance(state.posterior.precision, DiagonalMatrix)
        values = state.posterior.precision.values
        parts = state.posterior.mean, values, state.noise, state.buffers
        return parts, [value for part in parts for value in part.values()]

    def _next(
        self, state: State, parts: _Parts, plan: _Plan, found: Tensors, size: int
    ) -> tuple[State, Info]:
        learner, (mean, precision, noise, buffers) = self.learner, parts
        if plan.static is not None:
            mean, precision, _, buffers = _split(parts, plan.static[2:])
        noise = self._learned(noise, dict(zip(plan.learned, found[1:], strict=True)))
        posterior = Gaussian(mean, DiagonalMatrix(precision))
        new = State(posterior, state.rule, noise, buffers, state.step + 1, state.seed)
        self._last = new, *self._taken_apart(new)
        loss = found[0] * (learner.num_data / size)
        return new, Info(loss, learner.temperature, self._divergence(new))

    def _learned(self, noise: Params, statistics: Params) -> Params:
        if self._stack is not None and noise:
            return self._stack.learned(noise, statistics, 1.0)
        return self.learner.likelihood.update(noise, statistics, self.learner.weight)

    def _divergence(self, state: State) -> Callable[[], Tensor]:
        stack = self._stack
        return (
            self.learner.divergence(state.posterior) if stack is None else lambda: stack.kl(state)
        )

    def _planned(self, parts: _Parts, tensors: Tensors, size: int, key: object) -> _Plan:
        # Loading the compiler takes as long as loading the rest of the library.
        from torch.fx.experimental.proxy_tensor import make_fx

        learned: list[str] = []
        function = self._function(parts, size, learned)
        traced = make_fx(function)(*(t.clone() for t in tensors))
        _refuse_randomness(traced)
        own = self.backend == "inductor" and not tensors[0].is_cuda
        run = torch.compile(
            traced,
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
            options=_CPU_OPTIONS if own else None,
        )
        plan = _Plan(run, key, learned)
        return _captured(plan, tensors) if tensors[0].is_cuda else plan

    def _function(self, parts: _Parts, size: int, learned: list[str]) -> Callable[..., Tensors]:
        """One step as a function of tensors, which it changes."""
        learner = self.learner
        # One net is a stack that nothing is mapped over.
        local = Stacked(learner, 1).local if self._stack is None else torch.vmap(self._stack.local)

        def function(x: Tensor, y: Tensor, *flat: Tensor) -> Tensors:
            mean, precision, noise, buffers = _split(parts, flat)
            variance = vectors.reciprocal(precision)
            found, after = local(mean, variance, noise, dict(buffers), x, y)
            curvature = DiagonalMatrix(apart(found.eta))
            gradient = apart(found.delta)
            derivatives = Derivatives(found.loss, gradient, curvature, learner.weight, size)
            belief = Gaussian(mean, DiagonalMatrix(precision))
            learner.rule.step(belief, derivatives, learner.prior_precision, {}, 0)
            for name, value in after.items():
                if value is not buffers[name]:
                    buffers[name].copy_(value)
            statistics = vectors.scale(found.statistics, learner.weight / size)
            learned[:] = statistics
            return [found.loss, *statistics.values()]

        return function


def _key(x: Tensor) -> object:
    return x.shape, x.dtype, x.device


def _split(parts: _Parts, flat: Any) -> list[Params]:
    """Tensors in a row as parameters with the names that they had."""
    values = iter(flat)
    return [{name: next(values) for name in part} for part in parts]


def _refuse_randomness(traced: GraphModule) -> None:
    for node in traced.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise ValueError(
                f"The network draws random numbers in training ({node.target}), which a compiled "
                "step cannot repeat. Put its dropout into evaluation mode, or use learner.step."
            )


def _captured(plan: _Plan, tensors: Tensors) -> _Plan:
    """The step as a CUDA graph on tensors of its own."""
    static = [t.clone() for t in tensors]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            plan.run(*static)
    torch.cuda.current_stream().wait_stream(stream)
    for own, given in zip(static, tensors, strict=True):
        own.copy_(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = plan.run(*static)
    return _Plan(plan.run, plan.key, plan.learned, graph, static, results)


def _replay(plan: _Plan, tensors: Tensors) -> Tensors:
    assert plan.graph is not None
    assert plan.static is not None
    assert plan.results is not None
    for own, given in zip(plan.static, tensors, strict=True):
        if own.data_ptr() != given.data_ptr():
            own.copy_(given)
    plan.graph.replay()
    return [result.clone() for result in plan.results]
