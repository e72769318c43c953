"""Steps along the ELBO's gradient as one CUDA graph, replayed for each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule import distributed, seeds, tree
from bayesrule.curvature import Problem
from bayesrule.learner import Learner, check_batch
from bayesrule.posteriors import Normal
from bayesrule.rules import Elbo, Rates
from bayesrule.types import Batch, Info, State

_WARM_UP = 3


@dataclass(frozen=True)
class _Plan:
    """A captured step: where its inputs lie, and its loss."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    rates: Rates
    state: State
    loss: Tensor
    key: object


class Replayed:
    """The steps of `mean_field`, `k_tied`, `variational_laplace` or a point estimate on a GPU.

    A step of a deep net is some thousand small kernels, and starting them one by one takes longer
    than running them. Here the first step of a shape of batch is captured as a CUDA graph, and all
    others replay it. Random numbers come from a stream of their own that goes on from replay to
    replay, so draws differ from those of `learner.step`; the method is the same. Batches of another
    shape than the first, and everything on a CPU, go through `learner.step`. The state's tensors
    stay where they are: each step changes the same ones.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, mean_field
    >>> learner = mean_field(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=10)
    >>> step = Replayed(learner).step
    >>> state, info = step(learner.init(), (torch.ones(5, 2), torch.ones(5, 1)))
    """

    def __init__(self, learner: Learner) -> None:
        if not isinstance(learner.rule, Elbo):
            raise TypeError(
                "Replayed steps are for learners that follow the ELBO's gradient, such as "
                f"mean_field; this one has the rule {type(learner.rule).__name__}."
            )
        self.learner, self.rule = learner, learner.rule
        self._plan: _Plan | None = None
        self._last: State | None = None
        self._count = 0

    def step(self, state: State, batch: Batch, *, donate: bool = True) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step."""
        x, y = batch
        if not isinstance(x, Tensor) or not x.is_cuda or distributed.world_size() > 1:
            return self.learner.step(state, batch, donate=donate)
        check_batch(x, y)
        if not donate:
            state = tree.map_tensors(state, torch.clone)
        key = x.shape, x.dtype, x.stride(), y.shape, y.dtype
        if self._plan is None:
            self._plan = self._captured(state, x, y, key)
        plan = self._plan
        if plan.key != key:
            return self.learner.step(state, batch, donate=True)
        if state is not self._last:
            copy_into(plan.state, state)
        return self._replay(plan, state, x, y)

    def _replay(self, plan: _Plan, state: State, x: Tensor, y: Tensor) -> tuple[State, Info]:
        plan.x.copy_(x)
        plan.y.copy_(y)
        for place, value in zip(plan.rates, self.rule.rates(state.step), strict=True):
            assert isinstance(place, Tensor)
            place.fill_(float(value))
        plan.graph.replay()
        self._count += 1
        own = plan.state
        # A new object: replaying changes scales that the old one has worked something out from.
        posterior = replace(own.posterior)  # type: ignore[type-var]
        new = State(posterior, own.rule, own.noise, own.buffers, state.step + 1, state.seed)
        self._last = new
        return new, Info(plan.loss.clone(), self.learner.temperature, self._divergence(new))

    def _divergence(self, state: State) -> Callable[[], Tensor]:
        count = self._count

        def kl() -> Tensor:
            if count != self._count:
                raise RuntimeError("A later step has changed this state; read info.kl before it.")
            return state.posterior.kl(self.learner.prior_precision)

        return kl

    def _captured(self, state: State, x: Tensor, y: Tensor, key: object) -> _Plan:
        own = tree.map_tensors(state, torch.clone)
        generators = [seeds.generator(x.device, state.seed, state.step, 3 + k) for k in range(2)]
        rates = Rates(*(torch.tensor(float(r), device=x.device) for r in self.rule.rates(0)))
        x, y = x.clone(), y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                own, _ = self._advance(own, x, y, rates, generators)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            own, loss = self._advance(own, x, y, rates, generators)
        copy_into(own, state)
        return _Plan(graph, x, y, rates, own, loss, key)

    def _advance(
        self, state: State, x: Tensor, y: Tensor, rates: Rates, generators: list[torch.Generator]
    ) -> tuple[State, Tensor]:
        """One step; every tensor of the state is changed in its place."""
        learner = self.learner
        buffers, scale = dict(state.buffers), learner.weight / (len(y) * learner.expectation.num)
        problem = Problem(
            *(learner.network, learner.likelihood, state.noise, buffers, x, y, generators[0]),
            scale=scale,
            temperature=learner.temperature,
        )
        local = learner.local(problem, state.posterior, generators[1])
        derivatives = learner.derivatives(local, scale)
        assert isinstance(state.posterior, Normal)
        posterior, memory = self.rule.move(
            state.posterior, derivatives, learner.prior_precision, state.rule, rates
        )
        noise = learner.likelihood.update(state.noise, local.statistics, learner.weight)
        copy_into(state.buffers, buffers)
        # The first step may find that each output has a noise of its own.
        noise = {k: _put(state.noise[k], value) for k, value in noise.items()}
        new = State(posterior, memory, noise, state.buffers, state.step, state.seed)
        return new, derivatives.loss


def _put(place: Tensor, value: Tensor) -> Tensor:
    return place.copy_(value) if place.shape == value.shape else value.clone()


def copy_into(target: object, source: object) -> None:
    """Copies every tensor of one tree into the same place of another."""
    given, places, values = dict(tree.leaves(source)), [], []
    for name, place in tree.leaves(target):
        value = given.get(name)
        if isinstance(place, Tensor) and isinstance(value, Tensor) and value is not place:
            places.append(place)
            values.append(value)
    if places:
        torch._foreach_copy_(places, values)
