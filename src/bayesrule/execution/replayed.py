"""Steps as CUDA graphs, captured once for each kind of step and shape of batch, then replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.curvature import Problem
from bayesrule.execution.graphs import captured, copy_into, in_rows
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.execution.stacked.states import seeds_of
from bayesrule.learner import Learner
from bayesrule.likelihoods._uncertain import observed
from bayesrule.matrices import Matrix
from bayesrule.tensors import distributed, seeds, tree
from bayesrule.tensors.inputs import Inputs, mapped, named
from bayesrule.tensors.randomness import OneForAll
from bayesrule.types import Info, Params, State

# Random streams for replays, apart from those of single steps.
_STREAMS = 3, 4


def replay_obstacle(learner: Learner) -> str | None:
    """Why a learner's steps cannot be replayed, in words; None if they can.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, noisy_ekfac, vogn
    >>> parts = nn.Linear(2, 1), GaussianLikelihood(noise=0.1)
    >>> replay_obstacle(vogn(*parts, num_data=10))
    >>> replay_obstacle(noisy_ekfac(*parts, num_data=10))
    'a belief that is kept in eigenbases'
    """
    if distributed.world_size() > 1:
        return "several machines that work on each step"
    if learner.likelihood.scheduled:
        return "noise that follows a schedule"
    return learner.rule.replay_obstacle(learner.family, learner.expectation)


def on_gpu(y: Tensor) -> bool:
    """Whether the batch is on a GPU, where replaying saves time."""
    return y.is_cuda


@dataclass(frozen=True)
class _Plan:
    """A captured step, and the tensors of its batch, its rates and its loss."""

    graph: torch.cuda.CUDAGraph
    batch: Params
    rates: Any
    loss: Tensor


class Replayed:
    """Steps of a learner, or of a stack of nets, replayed on a GPU as CUDA graphs.

    A step is some hundred to thousand small kernels, and starting them one by one takes longer than
    running them. Here a step is captured as a CUDA graph for each shape of batch and kind of step
    (`noisy_kfac` estimates the curvature in some steps only), and replayed from then on. Random
    numbers come from separate streams that continue from replay to replay, so draws differ from
    those of `learner.step`; the method is the same. The first step, and every step on a CPU, goes
    through `learner.step`. The state's tensors keep their place in memory: each step overwrites
    them.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, mean_field
    >>> learner = mean_field(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=10)
    >>> step = Replayed(learner).step
    >>> state, info = step(learner.init(), (torch.ones(5, 2), torch.ones(5, 1)))
    """

    def __init__(self, stepper: Learner | Stacked) -> None:
        self.learner = stepper.learner if isinstance(stepper, Stacked) else stepper
        obstacle = replay_obstacle(self.learner)
        if obstacle is not None:
            raise TypeError(
                f"The steps of this learner cannot be replayed because of {obstacle}. Use its own "
                "step."
            )
        self._stepper: Any = stepper
        self._plans: dict[object, _Plan] = {}
        self._state: State | None = None
        self._derived: dict[str, Params] = {}
        self._generators: list[Generator] = []
        self._last: State | None = None
        self._count = 0

    def step(
        self,
        state: State,
        batch: tuple[Inputs, Tensor],
        *,
        donate: bool = True,
        sizes: Sequence[int] | None = None,
    ) -> tuple[State, Info]:
        """The next state, and the step's `Info`."""
        options: dict[str, Any] = {} if sizes is None else {"sizes": tuple(sizes)}
        # The first step may give each output a noise of its own, which changes shapes.
        if not on_gpu(batch[1]) or state.step == 0:
            return self._stepper.step(state, batch, donate=donate, **options)
        if not donate:
            state = tree.map_tensors(state, torch.clone)
        state.check()
        if state is not self._last:
            self._load(state)
        state.given_up()
        tensors = _tensors(batch)
        shapes = tuple((k, v.shape, v.dtype, v.stride()) for k, v in tensors.items())
        key = shapes, options.get("sizes"), self.learner.rule.kind(state.step)
        if key not in self._plans:
            self._plans[key] = self._captured(state, batch, options)
        again = partial(self._stepper.problem, batch=batch, **options)
        return self._replay(self._plans[key], state, tensors, again)

    def _load(self, state: State) -> None:
        """Copies a state into the tensors that all graphs work on."""
        if self._state is None:
            self._state = self._copied(state)
            self._derived = tree.map_tensors(derived(state), torch.clone)
            seed = seeds_of(state)[0] if isinstance(state.seed, Tensor) else state.seed
            self._generators = [
                seeds.generator(state.posterior.device, seed, state.step, k) for k in _STREAMS
            ]
        copy_into(self._state, state)
        copy_into(self._derived, derived(state))

    def _replay(
        self, plan: _Plan, state: State, batch: Params, again: Callable[[State], Problem]
    ) -> tuple[State, Info]:
        copy_into(plan.batch, batch)
        self.learner.rule.refill(plan.rates, state.step)
        plan.graph.replay()
        self._count += 1
        new = replace(self._current(), step=state.step + 1, seed=state.seed)
        self._last, count = new, self._count
        current = {"is_current": lambda: count == self._count}
        return new, self._stepper.info(plan.loss.clone(), new, again, **current)

    def _current(self) -> State:
        """The current state in new objects, because what the old ones cached is out of date."""
        assert self._state is not None
        return anew(self._state, self._derived)

    def _captured(
        self, state: State, batch: tuple[Inputs, Tensor], options: dict[str, Any]
    ) -> _Plan:
        (x, y), kept, step = batch, self._state, state.step
        assert kept is not None
        rates = self.learner.rule.rate_tensors(step, y.device)
        static = mapped(x, torch.clone), y.clone()

        def advance(begin: State) -> tuple[State, Tensor]:
            """One step that reads no number from the GPU."""
            streams = (*self._streams(), nullcontext)
            problem = self._stepper.problem(begin, static, streams=streams, **options)
            new, info = self.learner.advance(begin, replace(problem, rates=rates), donate=True)
            return new, info.loss

        def rehearse() -> None:
            begin = anew(self._copied(kept), self._derived)
            advance(replace(begin, step=step))

        def work() -> Tensor:
            new, loss = advance(replace(self._current(), step=step))
            copy_into(kept, new)
            # The next step draws weights with the matrix roots that this one computed.
            copy_into(self._derived, derived(new))
            return loss

        graph, loss = captured(work, rehearse, self._generators)
        return _Plan(graph, _tensors(static), rates, loss)

    def _copied(self, state: State) -> State:
        """A copy of a state; its posterior and the rule's memory are in rows if the rule can."""
        copied = tree.map_tensors(state, torch.clone)
        stacked = isinstance(self._stepper, Stacked)
        if stacked or not self.learner.rule.works_in_rows(self.learner.family):
            return copied
        return replace(copied, posterior=in_rows(copied.posterior), rule=in_rows(copied.rule))

    def _streams(self) -> list[Any]:
        if isinstance(self._stepper, Stacked):
            return [OneForAll(generator, self._stepper.num) for generator in self._generators]
        return list(self._generators)


def _matrices(state: State) -> Iterator[tuple[str, Matrix]]:
    """The matrices that draw weights and precondition the mean's steps."""
    preconditioner = state.rule.get("preconditioner")
    return tree.parts({"posterior": state.posterior, "preconditioner": preconditioner}, Matrix)


def derived(state: State) -> dict[str, Params]:
    """What a state's matrices have computed for later steps, such as their roots."""
    by_path = {path: matrix.derived() for path, matrix in _matrices(state)}
    return {path: tensors for path, tensors in by_path.items() if tensors}


def anew(state: State, known: dict[str, Params]) -> State:
    """The same tensors in new objects, whose caches hold only the `derived` tensors `known`."""
    rule = {k: v.anew() if hasattr(v, "anew") else v for k, v in state.rule.items()}
    fresh = replace(state, posterior=state.posterior.anew(), rule=rule)
    for path, matrix in _matrices(fresh):
        if path in known:
            matrix.restore(known[path])
    return fresh


def _tensors(batch: tuple[Inputs, Tensor]) -> Params:
    """The targets with their variances and weights, and the inputs, by name."""
    x, y = batch
    targets, extras = observed(y, {})
    inputs = {f"inputs/{name}": part for name, part in named(x)}
    return {"targets": targets, **extras, **inputs}
