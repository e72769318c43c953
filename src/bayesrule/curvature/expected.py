"""The expected loss in closed form, and its gradient: the ELBO without sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Never, cast

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.expectations import Look
from bayesrule.expectations.moments import MomentPoint
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor, Propagation
from bayesrule.tensors import vectors
from bayesrule.tensors.vectors import apart
from bayesrule.types import Local, Params


@dataclass(frozen=True)
class ExpectedLoss(Curvature):
    """`E_q[ℓ]` by moment propagation, differentiated in the means m and variances v of the weights.

    The gradient is `∂E[ℓ]/∂m`, the curvature `2 ∂E[ℓ]/∂v`, which by Bonnet's and Price's theorems
    are `E[∇ℓ]` and the diagonal of `E[∇²ℓ]`: all that the ELBO's gradient needs, without the noise
    of weight draws; Wu et al. (2019), where it is dDVI.

    The outputs are taken as independent Gaussians, and so are all units. For one linear layer that
    is exact with every likelihood; for one hidden layer it is exact with Gaussian noise of the
    targets, if the activation's moments are. In deeper nets and after convolutions units share
    weights, and what their covariances add to the variance of the next layer is left out.

    Weights without a variance are known. It goes with `Moments()`, where `constant_statistics` has
    no effect: this is the gradient of the loss as it is.
    """

    look = Look.MOMENTS
    may_be_negative = True
    diagonal_only = True
    asks = ("expected_log_prob",)

    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(MomentPoint, here.point)
        mean, variance = _leaves(point.coordinates), _leaves(point.variance)
        way = Propagation(problem.network, point.activations, record=False)
        given = problem.buffers, problem.x
        with torch.enable_grad():
            outputs = way.forward(mean, variance, *given, training=problem.training)
            loss = _expected(problem, outputs)
            gradient, slopes = _derivatives(loss * problem.scale, mean, variance)
        # Asking would make a GPU wait; what goes wrong there is seen at the end of the epoch.
        if problem.checked and loss.device.type == "cpu" and not _sound(loss, gradient, slopes):
            _explain(problem, way, mean, variance, loss)
        curvature = DiagonalMatrix(vectors.scale(slopes, 2.0))
        return Local(loss.detach(), apart(gradient), curvature, _statistics(problem, outputs))


def _expected(problem: Problem, outputs: GaussianTensor) -> Tensor:
    """`−Σ E[log p(y | f)]` of the batch, f the Gaussian outputs."""
    likelihood = problem.likelihood
    moments = outputs.centre, outputs.variance
    return -likelihood.expected_log_prob(*moments, problem.y, problem.likelihood_state).sum()


def _derivatives(loss: Tensor, mean: Params, variance: Params) -> tuple[Params, Params]:
    leaves = [*mean.values(), *variance.values()]
    found = torch.autograd.grad(loss, leaves, materialize_grads=True)
    first, second = found[: len(mean)], found[len(mean) :]
    return dict(zip(mean, first, strict=True)), dict(zip(variance, second, strict=True))


def _leaves(values: Params) -> Params:
    return {name: value.detach().requires_grad_() for name, value in values.items()}


def _statistics(problem: Problem, outputs: GaussianTensor) -> Params:
    """What the likelihood learns from, expected: these are squares of outputs.

    Two points at `m ± √s` have the mean and the variance of f, which is all that squares look at.
    """
    centre, std = outputs.centre.detach(), outputs.variance.detach().sqrt()
    above = problem.statistics(centre + std)
    below = problem.statistics(centre - std)
    return {name: 0.5 * (value + below[name]) for name, value in above.items()}


def _sound(loss: Tensor, gradient: Params, slopes: Params) -> bool:
    norms = torch._foreach_norm([*gradient.values(), *slopes.values()])
    return math.isfinite(float(loss.detach() + torch.stack(norms).sum()))


@torch.no_grad()
def _explain(
    problem: Problem, way: Propagation, mean: Params, variance: Params, loss: Tensor
) -> Never:
    """Says why the loss or its gradient is not finite."""
    x, y = problem.x, problem.y
    if y.is_floating_point() and y.isnan().any():
        raise ValueError(
            f"The targets hold {int(y.isnan().sum())} numbers that are NaN. ExpectedLoss() needs "
            "all of them: leave these examples out, or use tagi, which takes NaN as missing."
        )
    if loss.isfinite():
        raise FloatingPointError(
            f"The expected loss is {float(loss)}, but its gradient is not finite: too much for "
            f"{loss.dtype}. Standardised inputs and targets, a smaller spread or float64 help."
        )
    way.explain(mean, variance, problem.buffers, x, y, training=problem.training)
