"""Steps of many nets along their gradients, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Local
from bayesrule.execution.stacked import draws as stacked_draws
from bayesrule.execution.stacked.chain import Chain
from bayesrule.execution.stacked.obstacles import layered, ragged_obstacle
from bayesrule.execution.stacked.problem import StackedProblem
from bayesrule.execution.stacked.states import seeds_of
from bayesrule.learner import Learner
from bayesrule.rules import RatedRule
from bayesrule.tensors import seeds, vectors
from bayesrule.tensors.network import Inputs, forked_randomness
from bayesrule.tensors.randomness import Generators, OneForAll
from bayesrule.types import Derivatives, Params, State

# Streams of randomness within one step, those of `Learner.step`.
_TARGETS, _MODULE, _DRAWS = 0, 1, 2


@dataclass(frozen=True)
class Replay:
    """What differs between steps that are one and the same: their rates and their draws."""

    rates: Any
    numbers: OneForAll


class GradientSteps:
    """`Learner.step` of every net of a stack; each has its own number of data, `num_data`."""

    def __init__(self, learner: Learner, num_data: Sequence[float]) -> None:
        self.learner, self.num_data = learner, list(num_data)
        self._chain = Chain.of(learner.network)
        self._weights: Tensor | None = None

    def step(
        self,
        state: State,
        x: Inputs,
        y: Tensor,
        own: Tensor | None,
        donate: bool,
        replayed: Replay | None = None,
    ) -> tuple[State, Tensor]:
        """The next state and each net's loss; `own` (num, n) marks what does not only fill up.

        `replayed` has what differs from step to step where one and the same step is taken again.
        """
        if own is not None:
            x, y = _filled(x, own), _filled(y, own)
        like = next(iter(state.posterior.mean.values()))
        weight = self._weight(like)
        targets, draws = self._streams(state, like.device, own, replayed)
        problem = self._problem(state, x, y, own, weight, targets)
        with self._module_randomness(problem, state):
            local = self._local(problem, state, draws)
        return self._absorbed(state, local, problem, weight, donate, replayed)

    def _local(self, problem: StackedProblem, state: State, draws: Any) -> Local:
        """Sums over each net's batch and the points of its expectation."""
        learner = self.learner
        curvature = learner.rule.curvature_at(learner.curvature, state.step)
        if stacked_draws.at_once(problem, curvature, state.posterior):
            given = problem, state.posterior, draws, state.step
            return stacked_draws.local(learner, curvature, *given)
        if layered(learner):
            shape = tuple(problem.x.shape) if isinstance(problem.x, Tensor) else "several inputs"
            raise ValueError(
                "Nets whose covariance has two factors for each layer are stepped together with "
                f"inputs (num, n, features), got {shape}; others are trained one by one."
            )
        return learner.local(problem, state.posterior, draws, state.step)

    def _weight(self, like: Tensor) -> float | Tensor:
        """`num_data / temperature`: a number, or one for each net, (num,)."""
        if len(set(self.num_data)) == 1:
            return self.num_data[0] / self.learner.temperature
        if self._weights is None or self._weights.device != like.device:
            self._weights = like.new_tensor(self.num_data) / self.learner.temperature
        return self._weights

    def _problem(
        self,
        state: State,
        x: Inputs,
        y: Tensor,
        own: Tensor | None,
        weight: Any,
        targets: Generators,
    ) -> StackedProblem:
        """The batches and, in this one place, what each of their examples stands for."""
        learner, chain = self.learner, self._chain
        like = next(iter(state.posterior.mean.values()))
        count = y.shape[1] if own is None else own.sum(1).to(like.dtype)
        return StackedProblem(
            learner.network,
            learner.likelihood,
            state.noise,
            {name: value.clone() for name, value in state.buffers.items()},
            x,
            y,
            targets,  # type: ignore[arg-type]
            scale=weight / (count * learner.expectation.num),
            temperature=learner.temperature,
            own=own,
            chain=chain if chain is not None and chain.takes(x) else None,
        )

    def _absorbed(
        self,
        state: State,
        local: Local,
        problem: StackedProblem,
        weight: Any,
        donate: bool,
        replayed: Replay | None,
    ) -> tuple[State, Tensor]:
        """`Learner.absorb`: rules treat every number alone, and nets are more of them."""
        learner, rule = self.learner, self.learner.rule
        loss = local.loss * (problem.scale * learner.temperature)
        own = problem.own
        size: Any = problem.y.shape[1] if own is None else own.sum(1).to(loss.dtype)
        found = Derivatives(loss, local.gradient, local.curvature, weight, size, local.weights)
        curvature = rule.curvature_at(learner.curvature, state.step)
        found = curvature.complete(found, rule.structure(learner.family))
        given = state.posterior, state.rule
        belief, memory = given if donate else rule.copied(*given)
        known = belief, found, learner.prior_precision, memory
        if replayed is None:
            posterior, memory = rule.step(*known, state.step)
        else:
            assert isinstance(rule, RatedRule)
            posterior, memory = rule.move(*known, replayed.rates)
        noise = self._noise(state.noise, local.statistics, weight)
        new = State(posterior, memory, noise, problem.buffers, state.step + 1, state.seed)
        return new, loss

    def _noise(self, noise: Params, statistics: Params, weight: float | Tensor) -> Params:
        """What the likelihoods have learned from statistics (num, *outputs)."""
        if not statistics:
            return shared_noise(self.learner, noise)
        like = next(iter(statistics.values()))
        wide = {
            name: value.reshape(*value.shape, *[1] * (like.ndim - value.ndim))
            for name, value in noise.items()
        }
        own: Any = vectors.over(weight, like)
        found = self.learner.likelihood.update(wide, statistics, own)
        # The shape of the Gamma distribution is one for all outputs of a net.
        return {**found, "a": found["a"].reshape(-1)}

    def own(self, y: Tensor, sizes: Sequence[int] | None) -> Tensor | None:
        """The examples (num, n) that are each net's own; None where all are."""
        found = _missing(y) if sizes is None else _first(sizes, *y.shape[:2])
        problem = None if found is None else ragged_obstacle(self.learner)
        if problem is not None:
            raise ValueError(f"Batches that differ in size cannot be stacked, since {problem}.")
        return None if found is None else found.to(y.device)

    def _streams(
        self,
        state: State,
        device: torch.device,
        own: Tensor | None,
        replayed: Replay | None,
    ) -> tuple[Generators, Any]:
        """Where targets and weights are drawn from."""
        if replayed is not None:
            return replayed.numbers, replayed.numbers
        targets = self._generators(state, device, _TARGETS, own)
        return targets, self._generators(state, device, _DRAWS)

    def _generators(
        self, state: State, device: torch.device, stream: int, own: Tensor | None = None
    ) -> Generators:
        def keys() -> list[int]:
            return [seeds.key(seed, state.step, stream) for seed in seeds_of(state)]

        return Generators(device, keys, own)

    def _module_randomness(
        self, problem: StackedProblem, state: State
    ) -> AbstractContextManager[None]:
        if problem.chain is not None:
            return nullcontext()  # It draws nothing.
        key = seeds.key(seeds_of(state)[0], state.step, _MODULE)
        return forked_randomness(problem.y.device, key)


def shared_noise(learner: Learner, noise: Params) -> Params:
    """The next noise where it does not depend on data, such as a schedule's."""
    if not noise:
        return {}
    num = len(next(iter(noise.values())))
    first = {name: value[0] for name, value in noise.items()}
    moved = learner.likelihood.update(first, {}, learner.weight)
    return {name: value.expand(num).clone() for name, value in moved.items()}


def _first(sizes: Sequence[int], num: int, most: int) -> Tensor | None:
    """The first examples of each net, as many as it says."""
    given = [int(size) for size in sizes]
    if len(given) != num or min(given) < 1 or max(given) > most:
        raise ValueError(f"{num} nets have as many sizes from 1 to {most}, got {given}.")
    if min(given) == most:
        return None
    return torch.arange(most) < torch.tensor(given).unsqueeze(1)


def _missing(y: Tensor) -> Tensor | None:
    """The examples that have a target; None where all have, and where asking takes long."""
    if not y.is_floating_point() or y.device.type != "cpu" or not y.isnan().any():
        return None
    found = ~y.isnan().reshape(*y.shape[:2], -1).all(2)
    empty = (~found.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"Net {empty[0]} has no target in this batch: all of them are NaN. Batches of a stack "
            "hold at least one example of each net."
        )
    return found


def _filled(part: Any, own: Tensor) -> Any:
    """Examples that are not a net's own become copies of its first, whatever they were."""
    if isinstance(part, tuple):
        return tuple(_filled(one, own) for one in part)
    first = own.int().argmax(1)
    rows = part[torch.arange(len(part), device=part.device), first].unsqueeze(1)
    return torch.where(own.reshape(*own.shape, *[1] * (part.ndim - 2)), part, rows)
