"""The curvature of the loss of all data at one point, summed batch by batch."""

from __future__ import annotations

from collections.abc import Iterable

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.matrices import Matrix
from bayesrule.tensors import distributed
from bayesrule.tensors.network import num_examples


def curvature_of_all(
    curvature: Curvature, problems: Iterable[Problem], here: Here, weight: float
) -> Matrix:
    """`weight` times the mean curvature of an example, over the batches of all ranks."""
    total: Matrix | None = None
    seen = 0
    for problem in problems:
        found = curvature.local(problem, here).curvature
        assert found is not None
        total = found if total is None else total.plus(found)
        seen += num_examples(problem.x)
    if total is None:
        raise ValueError("There are no batches to take the curvature of.")
    whole: Matrix = distributed.sum_over_ranks(total)
    return whole.times(weight / distributed.count_over_ranks(seen, here.posterior.device))
