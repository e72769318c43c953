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
    """The loss, its gradient and its curvature, each point with its share of all ranks' points.

    `average` says what a rule wants averaged over the points. A batch in pieces is looked at piece
    by piece, each at points of its own, which are drawn alike.
    """
    same = expectation.look is not Look.LAYERS
    pieces = [problem] if problem.pieces == 1 else problem.in_pieces(same_draws=same)
    parts = expectation.num * distributed.world_size() * num_pieces(problem)
    total: Local | None = None
    for piece in pieces:
        for seen, point in piece.points(expectation, posterior, wanted):
            share = point.num_draws / parts
            local = _looked(seen, wanted.curvature, Here(point, wanted.structure, posterior))
            averaged = average(point)
            if averaged is not None:
                averaged = averaged if share == 1.0 else vectors.scale(averaged, share)
                local = dataclasses.replace(local, average=averaged)
            local = point.pulled(local, Pull(share, seen.scale, prior))
            total = local if total is None else total.plus(local)
    assert total is not None
    return total


def _looked(problem: Problem, curvature: Curvature, here: Here) -> Local:
    """The sums at one point; in float16 slopes go back unscaled, since those of all data overflow.

    They are multiplied by the scale afterwards, in the precision of the weights.
    """
    if not (half_wanted() and curvature.whole_data):
        return curvature.local(problem, here)
    plain = dataclasses.replace(problem, weight=problem.count * problem.num_points)
    return curvature.local(plain, here).times(problem.scale)


def num_pieces(problem: Problem) -> int:
    """How many pieces a batch comes in; there is no piece without an example."""
    if problem.pieces == 1:
        return 1
    size = num_examples(problem.x)
    return -(-size // -(-size // problem.pieces))
