"""A step compiled into few kernels, for learners whose step is arithmetic without randomness."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from bayesrule.curvature import Problem
from bayesrule.execution.graphs import captured
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.learner import Learner
from bayesrule.tensors import tree
from bayesrule.types import Batch, Info, Params, State

Tensors = list[Tensor]

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


class Compiled:
    """The steps of a `tagi` learner, traced once for a shape of batch and compiled.

    The same numbers as those of `learner.step` up to rounding, in fewer passes over memory; on a
    GPU each step is replayed as one CUDA graph. Compiling takes from seconds (a small net) to a
    minute (ResNet-18), so it pays for long trainings. The first step of a training, and batches of
    another shape than the first that was compiled, go through `learner.step`. `Stacked` nets can be
    compiled too. The old state's memory is used again unless `donate=False`. `backend` is one of
    torch.compile's; its default needs a C++ compiler.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> learner = tagi(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=10)
    >>> step = Compiled(learner, backend="eager").step
    >>> state, info = step(learner.init(), (torch.ones(5, 2), torch.ones(5, 1)))
    """

    def __init__(self, stepper: Learner | Stacked, backend: str = "inductor") -> None:
        learner = stepper.learner if isinstance(stepper, Stacked) else stepper
        if learner.curvature.whole_data or learner.expectation.random:
            raise TypeError(
                "Compiled steps are for learners whose step is closed form without randomness, "
                f"such as tagi; this one has the rule {type(learner.rule).__name__}. Use "
                "learner.step."
            )
        self.learner, self.backend, self._stepper = learner, backend, stepper
        self._plan: _Plan | None = None
        self._last: tuple[State, Tensors] | None = None

    @torch.no_grad()
    def step(self, state: State, batch: Batch, *, donate: bool = True) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step."""
        x, y = batch
        if type(x) is not Tensor:
            raise TypeError("Compiled steps take one plain tensor as inputs; use learner.step.")
        key = _key(x), _key(y)
        # The first step may find that each output has a noise of its own.
        if state.step == 0 or (self._plan is not None and self._plan.key != key):
            return self._stepper.step(state, batch, donate=donate)
        if not donate:
            state = tree.map_tensors(state, torch.clone)
        flat = self._tensors(state)
        if self._plan is None:
            self._plan = self._planned(state, [x, y, *flat], key)
        found = _run(self._plan, [x, y, *flat])
        return self._next(state, batch, self._plan, found)

    def _tensors(self, state: State) -> Tensors:
        """What a compiled step reads and changes; those of the last step's state are known."""
        if self._last is not None and self._last[0] is state:
            return self._last[1]
        return [v for _, v in tree.leaves(_parts(state)) if isinstance(v, Tensor)]

    def _next(self, state: State, batch: Batch, plan: _Plan, found: Tensors) -> tuple[State, Info]:
        """The state after a compiled step; what the likelihood learns is no part of the step."""
        tensors = self._tensors(state) if plan.static is None else plan.static[2:]
        # New objects: what the old ones worked out from these tensors is no longer so.
        parts = _rebuilt(_parts(state), tensors)
        statistics = dict(zip(plan.learned, found[1:], strict=True))
        if statistics or self.learner.likelihood.scheduled:
            parts["likelihood"] = self._problem(state, batch).learned(statistics)
        new = replace(state, **parts, step=state.step + 1)
        self._last = new, self._tensors(new)
        kl = getattr(self._stepper, "kl", None)
        return new, self.learner.info(found[0], new, divergence=kl)

    def _problem(self, state: State, batch: Batch) -> Problem:
        """A problem in which nothing is drawn."""
        return self._stepper.problem(state, batch, streams=(None, None, nullcontext))

    def _planned(self, state: State, tensors: Tensors, key: object) -> _Plan:
        # Loading the compiler takes as long as loading the rest of the library.
        from torch.fx.experimental.proxy_tensor import make_fx

        learned: list[str] = []
        function = self._function(state, learned)
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
        return _on_gpu(plan, tensors) if tensors[0].is_cuda else plan

    def _function(self, state: State, learned: list[str]) -> Callable[..., Tensors]:
        """One step as a function of tensors, which it changes."""

        def function(x: Tensor, y: Tensor, *flat: Tensor) -> Tensors:
            parts = _rebuilt(_parts(state), list(flat))
            begin = replace(state, **parts)
            problem = _Deferred.of(self._problem(begin, (x, y)))
            new, info = self.learner.advance(begin, problem, donate=True)
            after = dict(tree.leaves(_parts(new)))
            for name, old in tree.leaves(parts):
                value = after[name]
                if isinstance(old, Tensor) and value is not old:
                    old.copy_(value)  # type: ignore[arg-type]
            learned[:] = problem.statistics_seen
            return [info.loss, *problem.statistics_seen.values()]

        return function


def _parts(state: State) -> dict[str, Any]:
    """The parts of a state that hold tensors which a step reads or changes."""
    names = "posterior", "rule", "buffers", "likelihood"
    return {name: getattr(state, name) for name in names}


def _rebuilt(parts: dict[str, Any], flat: Tensors) -> dict[str, Any]:
    tensors = iter(flat)
    return tree.map_tensors(parts, lambda _: next(tensors))


class _Deferred:
    """Problems whose likelihood learns later, outside of what is compiled."""

    @staticmethod
    def of(problem: Any) -> Any:
        """The same problem, which notes statistics instead of learning from them."""
        seen: Params = {}

        def note(statistics: Params) -> Params:
            seen.update(statistics)
            return problem.likelihood_state

        made = replace(problem, checked=False)
        vars(made)["learned"], vars(made)["statistics_seen"] = note, seen
        return made


def _key(x: Tensor) -> object:
    return x.shape, x.dtype, x.device


def _refuse_randomness(traced: GraphModule) -> None:
    for node in traced.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise ValueError(
                f"The network draws random numbers in training ({node.target}), which a compiled "
                "step cannot repeat. Put its dropout into evaluation mode, or use learner.step."
            )


def _on_gpu(plan: _Plan, tensors: Tensors) -> _Plan:
    """The step as a CUDA graph on tensors of its own."""
    static = [t.clone() for t in tensors]
    graph, results = captured(
        lambda: plan.run(*static), lambda: plan.run(*(t.clone() for t in static))
    )
    return replace(plan, graph=graph, static=static, results=results)


def _run(plan: _Plan, tensors: Tensors) -> Tensors:
    if plan.graph is None:
        return plan.run(*tensors)
    assert plan.static is not None
    assert plan.results is not None
    for own, given in zip(plan.static, tensors, strict=True):
        if own.data_ptr() != given.data_ptr():
            own.copy_(given)
    plan.graph.replay()
    return [result.clone() for result in plan.results]
