"""The curvature of the loss of all data at one point, summed batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Matrix
from bayesrule.tensors import distributed
from bayesrule.tensors.inputs import pair
from bayesrule.tensors.network import Network, check_batch, num_examples
from bayesrule.tensors.step_randomness import TARGETS, StepRandomness
from bayesrule.types import Batch, State


def problems_of_all(
    network: Network,
    likelihood: Likelihood,
    randomness: StepRandomness,
    state: State,
    batches: Iterable[Batch],
) -> Iterator[Problem]:
    """One problem for each batch, with the state at the end of training."""
    # Ranks may have different numbers of batches here, so counts are not summed over ranks.
    parts, seen = (network, likelihood, state.likelihood, state.buffers), 0
    for x, y in map(pair, batches):
        at = replace(state, step=state.step + seen)
        targets = randomness.generator(at, TARGETS)
        yield Problem(*parts, x, likelihood.weighed(y), targets, training=False)
        seen += check_batch(x, y)


def curvature_of_all(
    curvature: Curvature, problems: Iterable[Problem], here: Here, weight: float
) -> Matrix:
    """`weight` times the mean curvature per example, over the batches of all ranks."""
    total: Matrix | None = None
    seen = 0
    for problem in problems:
        local = curvature.local(problem, here).curvature
        assert local is not None
        total = local if total is None else total.plus(local)
        seen += num_examples(problem.x)
    if total is None:
        raise ValueError("There are no batches to take the curvature of.")
    whole: Matrix = distributed.sum_over_ranks(total)
    return whole.times(weight / distributed.count_over_ranks(seen, here.posterior.device))
