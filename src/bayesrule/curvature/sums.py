"""Sums over a batch at all points of an expectation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bayesrule.curvature._base import Here, Problem, Wanted
from bayesrule.expectations import Expectation
from bayesrule.posteriors import Point, Posterior, Prior, Pull
from bayesrule.tensors import distributed, vectors
from bayesrule.types import Local, Params


def sums_over_points(
    problem: Problem,
    expectation: Expectation,
    posterior: Posterior,
    wanted: Wanted,
    average: Callable[[Point], Params | None],
    prior: Prior,
) -> Local:
    """The loss, its gradient and its curvature, each point with its share of all ranks' points.

    `average` says what a rule wants averaged over the points.
    """
    parts = expectation.num * distributed.world_size()
    total: Local | None = None
    for seen, point in problem.points(expectation, posterior, wanted):
        share = point.num_draws / parts
        local = wanted.curvature.local(seen, Here(point, wanted.structure, posterior))
        averaged = average(point)
        if averaged is not None:
            averaged = averaged if share == 1.0 else vectors.scale(averaged, share)
            local = dataclasses.replace(local, average=averaged)
        local = point.pulled(local, Pull(share, seen.scale, prior))
        total = local if total is None else total.plus(local)
    assert total is not None
    return total
