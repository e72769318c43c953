"""Steps of many small nets on a GPU as CUDA graphs, replayed for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesrule.execution.replayed import copy_into, replayable, roots, seen_anew
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.execution.stacked.states import seeds_of
from bayesrule.execution.stacked.steps import GradientSteps, Replay
from bayesrule.learner import Learner
from bayesrule.rules import Noisy, RatedRule
from bayesrule.tensors import seeds, tree
from bayesrule.tensors.network import Inputs
from bayesrule.tensors.randomness import OneForAll
from bayesrule.types import Params, State

_WARM_UP = 3
# A stream beside those that single steps draw from.
_STREAM = 5


class Stepper(Protocol):
    """Steps of a stack one after another, and the state after the last of them."""

    def step(self, batch: tuple[Inputs, Tensor], sizes: Sequence[int]) -> Tensor:
        """Takes a step; each net's loss."""

    @property
    def state(self) -> State:
        """The state after the last step."""


def stepper(stack: Stacked, state: State) -> Stepper:
    """The fastest way to take the steps of a stack, which gives its state up."""
    replayed = state.posterior.device.type == "cuda" and uniform(stack.learner)
    return Graphs(stack, state) if replayed else Plain(stack, state)


def uniform(learner: Learner) -> bool:
    """Whether every single step is the same, but for rates and draws."""
    rule = learner.rule
    plain = not isinstance(rule, Noisy) or rule.stats_every == rule.inverse_every == 1
    return plain and replayable(learner)


class Plain:
    """Steps as they come."""

    def __init__(self, stack: Stacked, state: State) -> None:
        self._stack, self.state = stack, state

    def step(self, batch: tuple[Inputs, Tensor], sizes: Sequence[int]) -> Tensor:
        """Takes a step; each net's loss."""
        self.state, info = self._stack.step(self.state, batch, sizes=sizes, donate=True)
        return info.loss


@dataclass(frozen=True)
class _Plan:
    """A captured step: where its batch lies, and its losses."""

    graph: torch.cuda.CUDAGraph
    x: Any
    y: Tensor
    loss: Tensor


class Graphs:
    """A graph for each shape of batch; all of them change one and the same state.

    A step of small nets is some hundred kernels, and starting them takes far longer than running
    them. Draws come from one generator that goes on from step to step, so that numbers differ from
    those of single steps; the method is the same.
    """

    def __init__(self, stack: Stacked, state: State) -> None:
        steps = stack._steps
        assert isinstance(steps, GradientSteps)
        assert isinstance(stack.learner.rule, RatedRule)
        self._steps, self._rule = steps, stack.learner.rule
        device, first = state.posterior.device, seeds_of(state)[0]
        self._generator = seeds.generator(device, first, state.step, _STREAM)
        rates = self._rule.placed(state.step, device)
        self._replay = Replay(rates, OneForAll(self._generator, stack.num))
        self._state, self._begun = state, False
        self._roots: dict[str, Params] = {}
        self._plans: dict[object, _Plan] = {}

    @property
    def state(self) -> State:
        """The state after the last step; its objects are new, for graphs change their tensors."""
        return seen_anew(self._state, self._roots)

    def step(self, batch: tuple[Inputs, Tensor], sizes: Sequence[int]) -> Tensor:
        """Takes a step; each net's loss."""
        x, y = batch
        own = self._steps.own(y, sizes)
        self._rule.refill(self._replay.rates, self._state.step)
        if not self._begun:
            # The first step may find that each output has a noise of its own.
            new, loss = self._steps.step(self._state, x, y, own, True, self._replay)
            self._state, self._begun = tree.map_tensors(new, torch.clone), True
            self._roots = tree.map_tensors(roots(new), torch.clone)
            return loss
        key = _shapes(x), y.shape, tuple(sizes)
        if key not in self._plans:
            self._plans[key] = self._captured(x, y, own)
        plan = self._plans[key]
        copy_into({"x": plan.x, "y": plan.y}, {"x": _parts(x), "y": y})
        plan.graph.replay()
        self._state = replace(self._state, step=self._state.step + 1)
        return plan.loss

    def _captured(self, x: Inputs, y: Tensor, own: Tensor | None) -> _Plan:
        held: Any = tuple(part.clone() for part in x) if isinstance(x, tuple) else x.clone()
        y = y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            trial = tree.map_tensors(self._state, torch.clone)
            for _ in range(_WARM_UP):
                trial, _ = self._steps.step(trial, held, y, own, True, self._replay)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            # Objects of their own: what they work out from their tensors belongs to the graph.
            new, loss = self._steps.step(self.state, held, y, own, True, self._replay)
            copy_into(self._state, new)
            # Weights are drawn by the roots that the step before has found.
            copy_into(self._roots, roots(new))
        return _Plan(graph, _parts(held), y, loss)


def _shapes(x: Inputs) -> object:
    return tuple(part.shape for part in x) if isinstance(x, tuple) else x.shape


def _parts(x: Any) -> dict[str, Tensor]:
    """The inputs by number, a tree of tensors."""
    return {str(i): part for i, part in enumerate(x if isinstance(x, tuple) else (x,))}
