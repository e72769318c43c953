"""Derivatives in the mean and the spread of every weight, along the paths of what was drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.expectations.layerwise import DrawnWeight, WeightSampler
from bayesrule.matrices import Diagonal, DiagonalMatrix, Matrix, Structure
from bayesrule.tensors import vectors
from bayesrule.tensors.network import Network, forked_randomness, num_examples
from bayesrule.tensors.stand_in import gradients
from bayesrule.types import Params

# The weights that a network uses several times in a pass; found once.
_REUSED: WeakKeyDictionary[Network, frozenset[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Pathwise(Curvature):
    """The reparameterised gradient, for draws that are made within the layers.

    `∂ℓ/∂m` as the gradient and `(∂ℓ/∂σ) / σ` as the curvature, whose expectation is the diagonal of
    `E[∇²ℓ]` (Price): one forward and one backward pass. For `LocalDraws()` and `Flipout()`.
    """

    needs_draws = True
    may_be_negative = True

    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        drawn = {k: v for k, v in point.params.items() if isinstance(v, DrawnWeight)}
        _check(drawn, structure)
        plain = {k: drawn[k].centre if k in drawn else v for k, v in point.params.items()}
        first = next(iter(drawn.values())).sampler
        shared = _reused(problem, plain, first)
        sampler = WeightSampler(first.how, first.generator, num_examples(problem.x), shared)
        mean = {k: v.detach().requires_grad_() for k, v in plain.items()}
        std = {k: v.spread.detach().requires_grad_() for k, v in drawn.items()}
        weights = sampler.weights(mean, std)
        outputs = problem.forward(weights)
        loss = problem.nll(outputs, problem.y)
        slopes = _slopes(loss * problem.scale, mean, std, {k: weights[k] for k in std})
        curvature = vectors.div(slopes[1], {k: v.detach() for k, v in std.items()})
        statistics = problem.statistics(outputs)
        return Local(loss.detach(), slopes[0], DiagonalMatrix(curvature), statistics)


def _check(drawn: Mapping[str, DrawnWeight], structure: Structure) -> None:
    if not drawn:
        raise TypeError(
            "Pathwise() follows draws that are made within the layers: use LocalDraws() or "
            "Flipout() as the expectation, or Price() as the curvature of Draws()."
        )
    if not isinstance(structure, Diagonal):
        raise TypeError(
            f"Pathwise() gives a diagonal, but the rule wants {type(structure).__name__}(); use "
            "Diagonal(), or Price() with Draws()."
        )


def _reused(problem: Problem, mean: Params, sampler: WeightSampler) -> frozenset[str]:
    """The weights that one pass uses several times, found by one that leaves no trace."""
    if problem.network not in _REUSED:
        device = next(iter(mean.values())).device
        buffers = {name: value.clone() for name, value in problem.buffers.items()}
        count = WeightSampler(sampler.how, None)
        with torch.no_grad(), forked_randomness(device, 0):
            weights = count.weights(mean, mean)
            problem.network(weights, buffers, problem.x, training=problem.training)
        _REUSED[problem.network] = frozenset(k for k, uses in count.uses.items() if uses > 1)
    return _REUSED[problem.network]


def _slopes(loss: Tensor, mean: Params, std: Params, weights: Params) -> tuple[Params, Params]:
    """The gradients in means and spreads; zeros for what was not used."""
    leaves = [*mean.values(), *std.values()]
    slopes = gradients(loss, leaves, weights)
    apart = vectors.apart({str(place): slope for place, slope in enumerate(slopes)})
    own = iter(apart.values())
    return {name: next(own) for name in mean}, {name: next(own) for name in std}
