"""Steps of one net as a CUDA graph, replayed for each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Problem
from bayesrule.learner import Learner, check_batch
from bayesrule.matrices import Diagonal, Kronecker
from bayesrule.matrices.factors import Root
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.kronecker_layer import FactoredLayer
from bayesrule.posteriors import Gaussian, GaussianFamily
from bayesrule.rules import Elbo, Noisy
from bayesrule.tensors import distributed, seeds, tree
from bayesrule.types import Batch, Info, Params, State

_WARM_UP = 3


@dataclass(frozen=True)
class _Plan:
    """A captured step: where its inputs lie, and its loss."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    rates: Any
    state: State
    roots: dict[str, Params]
    loss: Tensor
    key: object


def replayable(learner: Learner) -> bool:
    """Whether steps of a learner differ in their rates and draws alone, and wait for nothing.

    Where curvature is looked at, and roots are found, in some steps only, all others do.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, noisy_ekfac, noisy_kfac
    >>> given = nn.Linear(2, 1), GaussianLikelihood(noise=0.1)
    >>> replayable(noisy_kfac(*given, num_data=10, inverse_every=1))
    True
    >>> replayable(noisy_ekfac(*given, num_data=10))
    False
    """
    rule, family = learner.rule, learner.family
    if isinstance(rule, Elbo):
        return True
    if type(rule) is not Noisy or type(family) is not GaussianFamily:
        return False
    structure = family.structure
    # Eigenvectors are found in so many turns as a look at the numbers says.
    plain = isinstance(structure, Kronecker) and not (structure.exact or structure.corrected)
    return plain or type(structure) is Diagonal


class Replayed:
    """The steps of `mean_field`, `variational_laplace`, `noisy_kfac` or a point estimate on a GPU.

    A step of a deep net is some thousand small kernels, and starting them one by one takes longer
    than running them. Here the first step of a shape of batch is captured as a CUDA graph, and all
    others replay it. Random numbers come from a stream of their own that goes on from replay to
    replay, so draws differ from those of `learner.step`; the method is the same. Batches of another
    shape than the first, steps of `noisy_kfac` that look at the curvature, and everything on a CPU,
    go through `learner.step`. The state's tensors stay where they are: each step changes the same
    ones.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, mean_field
    >>> learner = mean_field(nn.Linear(2, 1), GaussianLikelihood(noise=0.1), num_data=10)
    >>> step = Replayed(learner).step
    >>> state, info = step(learner.init(), (torch.ones(5, 2), torch.ones(5, 1)))
    """

    def __init__(self, learner: Learner) -> None:
        if not replayable(learner):
            raise TypeError(
                "Replayed steps are for learners that follow the ELBO's gradient, such as "
                "mean_field, and for noisy_adam and noisy_kfac on a GPU; this one has the rule "
                f"{type(learner.rule).__name__} and the family {type(learner.family).__name__}."
            )
        assert isinstance(learner.rule, Elbo | Noisy)
        self.learner, self.rule = learner, learner.rule
        self._plan: _Plan | None = None
        self._last: State | None = None
        self._count = 0

    def step(self, state: State, batch: Batch, *, donate: bool = True) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step."""
        x, y = batch
        if not isinstance(x, Tensor) or not self._on_gpu(x) or not self._is_plain(state.step):
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
            copy_into(plan.roots, roots(state))
        return self._replay(plan, state, x, y)

    def _on_gpu(self, x: Tensor) -> bool:
        return x.is_cuda and distributed.world_size() == 1

    def _is_plain(self, step: int) -> bool:
        """Whether a step does what most do: no look at the curvature, no new roots."""
        rule = self.rule
        if isinstance(rule, Elbo) or rule.stats_every == rule.inverse_every == 1:
            return True
        return step % rule.stats_every > 0 and step % rule.inverse_every > 0

    def _replay(self, plan: _Plan, state: State, x: Tensor, y: Tensor) -> tuple[State, Info]:
        plan.x.copy_(x)
        plan.y.copy_(y)
        self.rule.refill(plan.rates, state.step)
        plan.graph.replay()
        self._count += 1
        own = plan.state
        # New objects: replaying changes what the old ones have worked something out from.
        new = replace(seen_anew(own, plan.roots), step=state.step + 1, seed=state.seed)
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
        known = tree.map_tensors(roots(state), torch.clone)
        generators = [seeds.generator(x.device, state.seed, state.step, 3 + k) for k in range(2)]
        rates = self.rule.placed(state.step, x.device)
        x, y = x.clone(), y.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            trial = seen_anew(tree.map_tensors(own, torch.clone), known)
            for _ in range(_WARM_UP):
                trial, _ = self._advance(trial, x, y, rates, generators)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            new, loss = self._advance(seen_anew(own, known), x, y, rates, generators)
            copy_into(own, new)
            copy_into(known, roots(new))
        return _Plan(graph, x, y, rates, own, known, loss, key)

    def _advance(
        self, state: State, x: Tensor, y: Tensor, rates: Any, generators: list[torch.Generator]
    ) -> tuple[State, Tensor]:
        """One step; every tensor of the state is changed in its place."""
        learner = self.learner
        buffers, scale = dict(state.buffers), learner.weight / (len(y) * learner.expectation.num)
        problem = Problem(
            *(learner.network, learner.likelihood, state.noise, buffers, x, y, generators[0]),
            scale=scale,
            temperature=learner.temperature,
        )
        local = learner.local(problem, state.posterior, generators[1], state.step)
        derivatives = learner.derivatives(local, scale, state.step)
        belief: Any = state.posterior
        posterior, memory = self.rule.move(
            belief, derivatives, learner.prior_precision, state.rule, rates, state.step
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


def factored(state: State) -> dict[str, FactoredLayer]:
    """The layers of a belief, and of what its mean is divided by, that are known by two factors."""
    rule = state.rule if isinstance(state.rule, dict) else {}
    belief = state.posterior
    given = {
        # Others work their precision out, which takes time.
        "precision": belief.precision if isinstance(belief, Gaussian) else None,
        "preconditioner": rule.get("preconditioner"),
    }
    return {
        f"{which}/{name}": layer
        for which, matrix in given.items()
        if isinstance(matrix, KroneckerMatrix)
        for name, layer in matrix.layers.items()
        if isinstance(layer, FactoredLayer)
    }


def roots(state: State) -> dict[str, Params]:
    """The roots of these layers; steps use them until others are found."""
    layers = factored(state).items()
    return {name: {"left": one.root.left, "right": one.root.right} for name, one in layers}


def seen_anew(state: State, known: dict[str, Params]) -> State:
    """The same tensors in new objects that know the roots of their layers and nothing else."""
    found = tree.map_tensors(state, lambda tensor: tensor)
    for name, layer in factored(found).items():
        layer.keep_root(Root.of(**known[name]))
    return found
