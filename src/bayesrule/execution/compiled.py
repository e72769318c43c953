"""Steps compiled into few kernels, for learners whose step is arithmetic without randomness."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from bayesrule.curvature import Problem
from bayesrule.execution.graphs import captured
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.learner import Learner
from bayesrule.likelihoods._uncertain import as_observed, observed
from bayesrule.tensors import tree
from bayesrule.tensors.unfit import check_finite
from bayesrule.types import Batch, Info, Params, State

Tensors = list[Tensor]

# On a CPU, storing a value that took several operations is faster than recomputing it for each
# user, as the compiler would by default: pooling reads each value of a ReLU nine times.
_CPU_OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 4, "realize_reads_threshold": 2}


class _Plan(NamedTuple):
    """A compiled step for batches of one shape.

    `run` takes the tensors of batch and state. It returns the loss followed by the likelihood's
    statistics, whose names are in `learned`, and the state's tensors after the step.
    """

    run: Callable[[Tensors], tuple[Tensors, Tensors]]
    key: object
    learned: list[str]


class Compiled:
    """Steps of a `tagi` learner, traced once for one shape of batch and compiled.

    Results agree with `learner.step` up to rounding, with fewer passes over memory; on a GPU each
    step is replayed as one CUDA graph. Compiling takes from seconds (a small net) to a minute
    (ResNet-18), so it pays off in long trainings. The first step of a training, and batches of
    another shape than the compiled one, go through `learner.step`. `Stacked` nets can be compiled
    too. The old state's memory is reused unless `donate=False`. `backend` is one of
    torch.compile's; the default needs a C++ compiler.

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
        """The next state, and the step's `Info`."""
        x, (y, extras) = batch[0], observed(batch[1], {})
        rates = self.learner.rule.rate_tensors(state.step, y.device)
        changing = [rate for rate in rates if isinstance(rate, Tensor)]
        tensors, names = [x, y, *extras.values(), *changing], list(extras)
        if type(x) is not Tensor:
            raise TypeError("Compiled steps take one plain tensor as inputs; use learner.step.")
        key = names, [(part.shape, part.dtype, part.device) for part in tensors]
        # The first step may give each output a noise of its own, which changes shapes.
        if state.step == 0 or (self._plan is not None and self._plan.key != key):
            return self._stepper.step(state, batch, donate=donate)
        state.check()
        if not donate:
            state = tree.map_tensors(state, torch.clone)
        if not x.is_cuda:
            check_finite("The inputs", x)
        flat = self._tensors(state)
        state.given_up()
        if self._plan is None:
            self._plan = self._planned(state, tensors, flat, key, names, rates)
        results, moved = self._plan.run([*tensors, *flat])
        # New objects, because what the old ones cached from these tensors is out of date.
        parts = _rebuilt(_parts(state), moved)
        statistics = dict(zip(self._plan.learned, results[1:], strict=True))
        if statistics or self.learner.likelihood.scheduled:
            parts["likelihood"] = self._problem(state, batch).learned(statistics)
        new = replace(state, **parts, step=state.step + 1)
        self._last = new, self._tensors(new)
        again = partial(self._stepper.problem, batch=batch)
        return new, self._stepper.info(results[0], new, again)

    def _tensors(self, state: State) -> Tensors:
        """The tensors that a compiled step reads and changes, cached for the last step's state."""
        if self._last is not None and self._last[0] is state:
            return self._last[1]
        return list(tree.tensors(_parts(state)).values())

    def _problem(self, state: State, batch: Batch) -> Problem:
        """A problem without random streams."""
        return self._stepper.problem(state, batch, streams=(None, None, nullcontext))

    def _planned(
        self, state: State, batch: Tensors, flat: Tensors, key: object, names: list[str], rates: Any
    ) -> _Plan:
        # Loading the compiler takes as long as loading the rest of the library.
        from torch.fx.experimental.proxy_tensor import make_fx

        learned: list[str] = []
        replaced: list[int] = []
        tensors, first = [*batch, *flat], len(batch)
        function = self._function(state, learned, replaced, names, rates)
        traced = make_fx(function)(*(t.clone() for t in tensors))
        _refuse_randomness(traced)
        on_cpu = self.backend == "inductor" and not tensors[0].is_cuda
        compiled = torch.compile(
            traced,
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
            options=_CPU_OPTIONS if on_cpu else None,
        )

        def in_place(*tensors: Tensor) -> Tensors:
            results, num = compiled(*tensors), 1 + len(learned)
            for place, value in zip(replaced, results[num:], strict=True):
                tensors[first + place].copy_(value)
            return results[:num]

        if tensors[0].is_cuda:
            return _Plan(_as_graph(in_place, tensors, first), key, learned)
        return _Plan(lambda tensors: (in_place(*tensors), tensors[first:]), key, learned)

    def _function(
        self, state: State, learned: list[str], replaced: list[int], names: list[str], rates: Any
    ) -> Callable[..., Tensors]:
        """One step as a function of tensors: those of the batch first, then the state's.

        It changes most state tensors in place. Those at the positions `replaced` are new tensors,
        returned last; the caller copies them, because the compiler drops some of the copies into
        old memory. `names` are those of the targets' variances and weights; the rates that are
        tensors come last in the batch.
        """
        changing = [name for name, rate in rates._asdict().items() if isinstance(rate, Tensor)]
        last = 2 + len(names)
        first = last + len(changing)

        def function(*tensors: Tensor) -> Tensors:
            x, values, *extras = tensors[:last]
            now = rates._replace(**dict(zip(changing, tensors[last:first], strict=True)))
            y = as_observed(values, dict(zip(names, extras, strict=True)))
            parts = _rebuilt(_parts(state), list(tensors[first:]))
            begin = replace(state, **parts)
            problem, statistics = _deferred(replace(self._problem(begin, (x, y)), rates=now))
            new, info = self.learner.advance(begin, problem, donate=True)
            after = tree.tensors(_parts(new))
            before = enumerate(tree.tensors(parts).items())
            fresh = {place: after[name] for place, (name, old) in before if after[name] is not old}
            learned[:], replaced[:] = statistics, fresh
            return [info.loss, *statistics.values(), *fresh.values()]

        return function


def _parts(state: State) -> dict[str, Any]:
    """The parts of a state whose tensors a step reads or changes."""
    names = "posterior", "rule", "buffers", "likelihood"
    return {name: getattr(state, name) for name in names}


def _rebuilt(parts: dict[str, Any], flat: Tensors) -> dict[str, Any]:
    tensors = iter(flat)
    return tree.map_tensors(parts, lambda _: next(tensors))


def _deferred(problem: Any) -> tuple[Any, Params]:
    """A problem that records the likelihood's statistics instead of updating its state.

    The likelihood's update is not part of the compiled step.
    """
    recorded: Params = {}

    def record(statistics: Params) -> Params:
        recorded.update(statistics)
        return problem.likelihood_state

    deferred = replace(problem, checked=False)
    vars(deferred)["learned"] = record
    return deferred, recorded


def _refuse_randomness(traced: GraphModule) -> None:
    for node in traced.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise ValueError(
                f"The network draws random numbers in training ({node.target}), which a compiled "
                "step cannot repeat. Put its dropout into evaluation mode, or use learner.step."
            )


def _as_graph(
    work: Callable[..., Tensors], tensors: Tensors, first: int
) -> Callable[[Tensors], tuple[Tensors, Tensors]]:
    """The step as a CUDA graph, replayed on tensors that keep their place in memory."""
    static = [t.clone() for t in tensors]
    graph, results = captured(lambda: work(*static), lambda: work(*(t.clone() for t in static)))

    def run(tensors: Tensors) -> tuple[Tensors, Tensors]:
        for target, value in zip(static, tensors, strict=True):
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)
        graph.replay()
        return [result.clone() for result in results], static[first:]

    return run
