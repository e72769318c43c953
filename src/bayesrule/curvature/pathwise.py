"""Derivatives in the mean and the spread of every weight, along the paths of what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.expectations import Look
from bayesrule.expectations.layerwise import LayerPoint, WeightSampler
from bayesrule.matrices import DiagonalMatrix
from bayesrule.tensors import vectors
from bayesrule.tensors.network import Network, forked_randomness, num_examples
from bayesrule.tensors.stand_in import gradients
from bayesrule.types import Local, Params

# The weights that a network uses several times in a pass; found once.
_REUSED: WeakKeyDictionary[Network, frozenset[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Pathwise(Curvature):
    """The reparameterised gradient, for draws that are made within the layers.

    `∂ℓ/∂m` as the gradient and `(∂ℓ/∂σ) / σ` as the curvature, whose expectation is the diagonal of
    `E[∇²ℓ]` (Price): one forward and one backward pass. For `LocalDraws()` and `Flipout()`.
    """

    look = Look.LAYERS
    needs_draws = True
    may_be_negative = True
    diagonal_only = True

    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(LayerPoint, here.point)
        shared = _reused(problem, point)
        mean = {k: v.detach().requires_grad_() for k, v in point.coordinates.items()}
        std = {k: v.detach().requires_grad_() for k, v in point.std.items()}
        sampler = WeightSampler(point.how, point.generator, num_examples(problem.x), shared)
        weights = sampler.weights(mean, std)
        outputs = problem.forward(weights)
        loss = problem.nll(outputs, problem.y)
        slopes = _slopes(loss * problem.scale, mean, std, {k: weights[k] for k in std})
        curvature = vectors.div(slopes[1], {k: v.detach() for k, v in std.items()})
        statistics = problem.statistics(outputs)
        return Local(loss.detach(), slopes[0], DiagonalMatrix(curvature), statistics)


def _reused(problem: Problem, point: LayerPoint) -> frozenset[str]:
    """The weights that one pass uses several times, found by one that leaves no trace."""
    if problem.network not in _REUSED:
        mean = point.coordinates
        device = next(iter(mean.values())).device
        buffers = {name: value.clone() for name, value in problem.buffers.items()}
        count = WeightSampler(point.how, None)
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
