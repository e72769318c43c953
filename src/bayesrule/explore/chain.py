"""Chains of networks: what a network infers about its inputs trains the network before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Problem
from bayesrule.expectations import Look
from bayesrule.learner import Learner
from bayesrule.matrices.diagonal import DiagonalMatrix
from bayesrule.moments import GaussianTensor, Propagation
from bayesrule.tensors import vectors
from bayesrule.types import Info, Local, State


@torch.no_grad()
def step_chain(
    learners: Sequence[Learner],
    states: Sequence[State],
    batch: tuple[Any, Tensor],
    *,
    learn: Sequence[bool] | None = None,
) -> tuple[list[State], Info]:
    """One step of `tagi` networks in a row: each takes the Gaussian outputs of the one before.

    Targets y condition the outputs of the last network. The innovations `(δ, η)` of its inputs are
    what the network before it learns from, and so on to the first: the step is that of one network
    made of all parts. `learn` says which of them move, by default all. For example, a generator
    learns from the innovations of its pictures by a discriminator that stays fixed. Only the
    likelihood of the last network counts. Goulet, Nguyen & Amiri (2021), section 3.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> parts = [nn.Linear(2, 3), nn.Linear(3, 1)]
    >>> learners = [tagi(part, GaussianLikelihood(noise=0.1), num_data=5) for part in parts]
    >>> states = [learner.init() for learner in learners]
    >>> states, info = step_chain(learners, states, (torch.ones(5, 2), torch.ones(5, 1)))
    >>> [state.step for state in states]
    [1, 1]
    """
    moving = [True] * len(learners) if learn is None else list(learn)
    if not len(learners) == len(states) == len(moving) > 0:
        got = f"{len(learners)} learners, {len(states)} states and {len(moving)} of `learn`"
        raise ValueError(f"A chain has a state for each learner, got {got}.")
    _check(learners)
    x, y = batch
    problems, passes, outputs = _forward(learners, states, x, y)
    conditioned = learners[-1].likelihood.condition(
        outputs[-1].centre, outputs[-1].variance, y, states[-1].likelihood
    )
    delta, eta, new_states = conditioned.delta, conditioned.eta, list(states)
    loss, info = -conditioned.log_prob.sum(), None
    for k in reversed(range(len(learners))):
        first, second = passes[k].back(outputs[k], delta, eta)
        statistics = conditioned.statistics if k == len(learners) - 1 else {}
        if moving[k]:
            local = _local(problems[k], loss, first, second, statistics)
            new_states[k], step_info = learners[k].absorb(states[k], local, problems[k])
            info = step_info if info is None else info
        if k:
            node = passes[k].inputs[0].node
            delta, eta = node.delta, node.eta
    return new_states, info or Info(loss)


def _forward(
    learners: Sequence[Learner], states: Sequence[State], x: Any, y: Tensor
) -> tuple[list[Problem], list[Propagation], list[GaussianTensor]]:
    """The pass through all networks, each with its own tape."""
    problems, passes, outputs = [], [], []
    for learner, state in zip(learners, states, strict=True):
        problem = learner.problem(state, (x, y))
        activations = learner.expectation.activations
        propagation = Propagation(learner.network, activations)
        belief = state.posterior
        variance = belief.uncertain_variance()
        output = propagation.forward(
            belief.mean, variance, problem.buffers, problem.x, training=True
        )
        x = GaussianTensor(output.centre, output.variance)
        problems.append(problem)
        passes.append(propagation)
        outputs.append(output)
    return problems, passes, outputs


def _local(problem: Problem, loss: Tensor, delta: Any, eta: Any, statistics: Any) -> Local:
    """Innovations as the batch sums that a learner absorbs."""
    weight = -1.0 / problem.temperature
    gradient, second = (vectors.scale(part, weight) for part in (delta, eta))
    scaled = vectors.scale(statistics, problem.scale)
    return Local(loss, gradient, DiagonalMatrix(second), scaled)


def _check(learners: Sequence[Learner]) -> None:
    for k, learner in enumerate(learners):
        if learner.expectation.look is not Look.MOMENTS or learner.curvature.whole_data:
            raise TypeError(
                f"Innovations pass through tagi networks; learner {k} has the rule "
                f"{type(learner.rule).__name__}. Build it with tagi."
            )
        if learner.likelihood.learns and k < len(learners) - 1:
            raise ValueError(
                f"Learner {k} is followed by others, so it has no targets to learn its noise "
                "from; give it GaussianLikelihood(noise=0.1), which is not used."
            )
