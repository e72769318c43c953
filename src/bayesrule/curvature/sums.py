"""Sums over a batch at all points of an expectation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bayesrule.curvature._base import Curvature, Here, Problem, Wanted
from bayesrule.expectations import Expectation, Look
from bayesrule.posteriors import Point, Posterior, Prior, Pull
from bayesrule.tensors import distributed, vectors
from bayesrule.tensors.autocast import half_wanted
from bayesrule.tensors.network import num_examples
from bayesrule.types import Local, Params


def sums_over_points(
    problem: Problem,
    expectation: Expectation,
    posterior: Posterior,
    wanted: Wanted,
    average: Callable[[Point], Params | None],
    prior: Prior,
) -> Local:
    """The loss, its gradient and its curvature, averaged over the points of all ranks.

    `average` gives what a rule averages over the points. A batch in pieces is evaluated piece by
    piece, each at its own points, which are drawn alike.
    """
    same = expectation.look is not Look.LAYERS
    pieces = [problem] if problem.pieces == 1 else problem.in_pieces(same_draws=same)
    parts = expectation.num * distributed.world_size() * num_pieces(problem)
    total: Local | None = None
    for piece in pieces:
        for at, point in piece.points(expectation, posterior, wanted):
            share = point.num_draws / parts
            local = _local(at, wanted.curvature, Here(point, wanted.structure, posterior))
            averaged = average(point)
            if averaged is not None:
                averaged = averaged if share == 1.0 else vectors.scale(averaged, share)
                local = dataclasses.replace(local, average=averaged)
            local = point.pulled(local, Pull(share, at.scale, prior))
            total = local if total is None else total.plus(local)
    assert total is not None
    return total


def _local(problem: Problem, curvature: Curvature, here: Here) -> Local:
    """The sums at one point; under float16, the slopes of all data would overflow.

    They are backpropagated without the scale, and multiplied by it in the precision of the weights.
    """
    if not (half_wanted() and curvature.whole_data):
        return curvature.local(problem, here)
    unscaled = dataclasses.replace(problem, weight=problem.count * problem.num_points)
    return curvature.local(unscaled, here).times(problem.scale)


def num_pieces(problem: Problem) -> int:
    """The number of pieces of a batch, none of which is empty."""
    if problem.pieces == 1:
        return 1
    size = num_examples(problem.x)
    return -(-size // -(-size // problem.pieces))
