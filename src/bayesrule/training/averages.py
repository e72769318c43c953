"""The running averages of normalising layers, computed again for a belief as it now is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import torch

from bayesrule.expectations import Look
from bayesrule.learner import MODULE, Learner
from bayesrule.moments import Propagation
from bayesrule.tensors import distributed, seeds
from bayesrule.tensors.network import copies, forked_randomness
from bayesrule.types import Batch, State


@torch.no_grad()
def renew_averages(
    learner: Learner, state: State, batches: Iterable[Batch], most: int = 20
) -> State:
    """The state with statistics of normalising layers that fit its weights.

    Under moment propagation the running averages of training are biased in the same direction at
    every position, which spoils predictions; a plain average over at most `most` batches is not.
    Other learners, and modules without running averages, keep their state.
    """
    names = learner.network.averaged()
    if not names or learner.expectation.look is not Look.MOMENTS:
        return state
    buffers = copies(state.buffers)
    for name in names:
        buffers[name].zero_()
    belief = state.posterior.mean, state.posterior.variance()
    activations = learner.expectation.activations
    key = seeds.key(state.seed, state.step, learner.stream(MODULE))
    with forked_randomness(state.posterior.device, key), learner.network.equal_averages():
        for x, _ in itertools.islice(batches, most):
            propagation = Propagation(learner.network, activations, record=False)
            propagation.forward(*belief, buffers, x, training=True)
    return replace(state, buffers=distributed.mean_over_ranks(buffers))
