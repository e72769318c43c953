"""All draws of the weights of all nets at once, where the module is a chain of layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from bayesrule.curvature import (
    GGN,
    Curvature,
    Fisher,
    Local,
    NoCurvature,
    PerExample,
    Price,
    SquaredGradient,
)
from bayesrule.execution.stacked.problem import StackedProblem
from bayesrule.expectations import Draws, Expectation, Point
from bayesrule.learner import Learner
from bayesrule.matrices import Kronecker, Structure, SubsetMatrix
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.tridiagonal_matrix import BlockTridiagonalMatrix
from bayesrule.posteriors import Factorised, Gaussian, Posterior, Rotated
from bayesrule.posteriors.factorised import StdSlope
from bayesrule.tensors import vectors
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Params

# What looks at weights and outputs alone, not at the way from the mean to a draw.
_OF_WEIGHTS = {NoCurvature, SquaredGradient, PerExample, GGN, Fisher}
# How many weights are drawn at once, over all nets: what saves time for small ones takes memory.
_MOST = 1 << 25


def at_once(problem: StackedProblem, curvature: Curvature, posterior: Posterior) -> bool:
    """Whether weights of a chain are all that a curvature looks at, or what it does is a product.

    With known standard deviations the slope in them is that in the weights times the noise.
    """
    known = type(curvature) in _OF_WEIGHTS
    known = known or (type(curvature) is Price and isinstance(posterior, Factorised))
    return problem.chain is not None and known


def local(
    learner: Learner,
    curvature: Curvature,
    problem: StackedProblem,
    posterior: Posterior,
    generators: Any,
    step: int,
) -> Local:
    """`Learner.local` of a stack: sums over each net's batch and over its draws."""
    turned = posterior if isinstance(posterior, Rotated) else None
    belief = posterior if turned is None else turned.inner
    precision = getattr(posterior, "precision", None)
    structure = learner.rule.structure_at(learner.family, precision, step)
    most = _MOST // vectors.numel(belief.mean) if _adds_up(structure, curvature) else 1
    total: Local | None = None
    for point in _points(learner.expectation, belief, generators, max(1, most)):
        found = _summed(learner, structure, curvature, problem, turned, point, precision)
        total = found if total is None else total.plus(found)
    assert total is not None
    return total


def _points(
    expectation: Expectation, belief: Posterior, generators: Any, most: int
) -> Iterator[Point]:
    """At most so many draws at a time, {name: (num, draws, *shape)}."""
    plain = type(expectation) is Draws and not expectation.antithetic
    if plain and _takes_draws(belief):
        for begun in range(0, expectation.num, most):
            yield _drawn(belief, min(most, expectation.num - begun), generators)
        return
    points = expectation.points(belief, generators)
    while group := list(itertools.islice(points, most)):
        params = _stacked([point.params for point in group])
        assert params is not None
        offset = _stacked([point.offset for point in group])
        yield Point(params, offset, noise=_stacked([point.noise for point in group]))


def _stacked(each: Sequence[Params | None]) -> Params | None:
    known = [one for one in each if one is not None]
    return (
        {name: torch.stack([one[name] for one in known], 1) for name in known[0]} if known else None
    )


def _drawn(belief: Posterior, draws: int, generators: Generators) -> Point:
    """Several draws from the numbers that they have one after another."""
    wide = {name: mean.unsqueeze(1) for name, mean in belief.mean.items()}
    if isinstance(belief, Factorised):
        std = belief.std()
        noise = _noise({name: belief.mean[name] for name in std}, draws, generators)
        weights = {
            name: torch.addcmul(mean, noise[name], std[name].unsqueeze(1))
            if name in noise
            else mean.expand(-1, draws, *mean.shape[2:])
            for name, mean in wide.items()
        }
        return Point(weights, None, noise=noise)
    assert isinstance(belief, Gaussian)
    offsets = belief.precision.inv_sqrt(_noise(belief.mean, draws, generators))
    return Point({name: mean + offsets[name] for name, mean in wide.items()}, offsets)


def _takes_draws(belief: Posterior) -> bool:
    """Whether a belief makes several draws from noise at once."""
    if len({value.dtype for value in belief.mean.values()}) > 1:
        return False
    if not isinstance(belief, Gaussian):
        return isinstance(belief, Factorised)
    known = belief.precision
    return isinstance(known, BlockTridiagonalMatrix) or (
        isinstance(known, KroneckerMatrix) and not known.rest
    )


def _noise(mean: Params, draws: int, generators: Generators) -> Params:
    """The numbers of as many calls of `vectors.randn_like`, {name: (num, draws, *shape)}."""
    like = next(iter(mean.values()))
    sizes = [value[0].numel() for value in mean.values()]
    rows = generators.several(draws, sum(sizes), like.dtype)
    parts = zip(mean.items(), rows.split(sizes, dim=2), strict=True)
    return {k: part.reshape(len(like), draws, *v.shape[1:]) for (k, v), part in parts}


def _adds_up(structure: Structure, curvature: Curvature) -> bool:
    """Whether all draws at once give what one after another gives, from the same numbers."""
    if isinstance(curvature, Fisher) and curvature.samples > 1:
        return False  # Each draw's targets are drawn before the next one's.
    # The sum of corrected factors has lost what their common bases would have kept.
    return not (isinstance(structure, Kronecker) and structure.corrected)


def _summed(
    learner: Learner,
    structure: Structure,
    curvature: Curvature,
    problem: StackedProblem,
    turned: Rotated | None,
    point: Point,
    precision: Any,
) -> Local:
    """The sums at some draws, {name: (num, draws, *shape)}."""
    weights, offset, noise = point.params, point.offset, point.noise
    draws, generator = _num_draws(weights), cast(Generators, problem.generator)
    whole = problem.drawn(draws, generator.again(len(problem.y), draws))
    params = weights if turned is None else _turned_back(turned, weights)
    if draws == 1:
        params = {name: value.squeeze(1) for name, value in params.items()}
        offset, noise = (
            way and {k: v.squeeze(1) for k, v in way.items()} for way in (offset, noise)
        )
    found = curvature.local(whole, Point(params, offset, noise=noise), structure, precision)
    gradient, second = found.gradient, found.curvature
    if draws > 1 and not curvature.needs_rows:
        # Rows are summed over the draws; the gradient by one pass is that of each of them.
        gradient = {name: value.sum(1) for name, value in gradient.items()}
        second = _summed_slope(second)
    if turned is not None:
        gradient = turned.rotation.into(gradient)
    share = None
    if learner.rule.needs_weights:
        # What these draws add to the mean of all of them.
        added = {name: value.sum(1) for name, value in weights.items()}
        share = vectors.scale_(added, 1.0 / learner.expectation.num)
    return Local(found.loss, gradient, second, found.statistics, share)


def _summed_slope(curvature: Any) -> Any:
    """The slopes in standard deviations summed over draws; other curvatures are sums already."""
    if isinstance(curvature, SubsetMatrix):
        return replace(curvature, inner=_summed_slope(curvature.inner))
    if isinstance(curvature, StdSlope):
        return StdSlope({name: value.sum(1) for name, value in curvature.values.items()})
    return curvature


def _turned_back(belief: Rotated, weights: Params) -> Params:
    """The weights of draws (num, draws, *) that are given as seen in the belief's bases."""
    each = [{k: v[:, i] for k, v in weights.items()} for i in range(_num_draws(weights))]
    back = [belief.rotation.back(one) for one in each]
    return {name: torch.stack([one[name] for one in back], 1) for name in back[0]}


def _num_draws(weights: Params) -> int:
    return next(iter(weights.values())).shape[1]
