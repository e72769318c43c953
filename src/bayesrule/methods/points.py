"""Methods that find one best set of weights: plain optimisers and MAP."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Adam

from bayesrule.curvature import NoCurvature, SquaredGradient
from bayesrule.expectations import AtMean
from bayesrule.matrices import Diagonal, Isotropic
from bayesrule.methods._record import ONE_NET, Parts, Rate, method
from bayesrule.methods._words import AT_MEAN, DIAGONAL
from bayesrule.posteriors import GaussianFamily
from bayesrule.rules import Average, Elbo, HeavyBall, Natural
from bayesrule.schedules import falling

FIXED = "fixed covariance, about I/N (`Isotropic`)"
NONE = "none (`NoCurvature`)"
SQUARED_GRADIENT = "square of the batch's mean gradient (`SquaredGradient`)"
DESCENT = "natural gradient, which with a fixed covariance is the gradient, with a heavy ball"
ROOT = "natural gradient, divided by the root of the averaged squares"
UNBIASED_ROOT = (
    "natural gradient, averaged, divided by the root of the averaged squares; both averages are "
    "bias-corrected"
)
POINT = "predicts with the mean alone: its covariance says nothing about the data"
BATCH_DEPENDENT = (
    "predicts with the mean alone: the precision is an average of squares that depend on the batch "
    "size"
)

# Adam's learning rate for small nets, up to this number of weights, and that for the largest nets.
_SMALL, _RATE_OF_SMALL, _RATE_OF_LARGE = 10_000, 1e-2, 1e-3

OF_SIZE = "step size, a number or a schedule; None falls from 0.01, for large nets from 0.001"

# Plain optimisers train one net, and have no prior unless they are given one.
OPTIMISER: dict[str, Any] = {
    "course": ONE_NET,
    "defaults": {"prior_precision": 0.0},
    "represented_by": "map",
}


@method(
    words=(FIXED, AT_MEAN, NONE, DESCENT),
    source="Khan & Rue (2023), sec. 4.1, eqs 34 and 35; heavy ball: appendix F, eq. 75",
    limits=POINT,
    **OPTIMISER,
    explained={"momentum": "fraction of the last step that is added to the next (heavy ball)"},
)
def sgd(*, learning_rate: Rate = falling(3e-3), momentum: float = 0.9) -> Parts:
    """Gradient descent: the mean of a Gaussian follows the gradient, its covariance stays."""
    rule = Natural(learning_rate, momentum=HeavyBall(momentum), fixed_precision=True)
    return Parts(GaussianFamily(Isotropic()), AtMean(), NoCurvature(), rule)


@method(
    words=(DIAGONAL, AT_MEAN, SQUARED_GRADIENT, ROOT),
    source="Khan & Rue (2023), sec. 4.2, eq. 38",
    limits=BATCH_DEPENDENT,
    **OPTIMISER,
)
def rmsprop(*, learning_rate: Rate = falling(1e-3), rate: Rate = 0.01) -> Parts:
    """RMSprop: a diagonal Gaussian at its mean, preconditioned by the root of squared gradients."""
    rule = Natural(learning_rate, rate, square_root=True, from_zero=True)
    return Parts(GaussianFamily(Diagonal()), AtMean(), SquaredGradient(), rule)


@method(
    words=(DIAGONAL, AT_MEAN, SQUARED_GRADIENT, UNBIASED_ROOT),
    source="Khan & Rue (2023), sec. 4.2 and appendix F, eq. 77; Kingma & Ba (2015), algorithm 1",
    limits=BATCH_DEPENDENT,
    **OPTIMISER,
)
def adam(*, learning_rate: Rate = falling(1e-3), momentum: float = 0.9, rate: Rate = 1e-3) -> Parts:
    """Adam: RMSprop with averaged gradients, both averages bias-corrected."""
    rule = Natural(learning_rate, rate, Average(momentum), square_root=True, debias=True)
    return Parts(GaussianFamily(Diagonal()), AtMean(), SquaredGradient(), rule)


@method(
    words=(FIXED, AT_MEAN, NONE, "gradient of the ELBO in the mean alone, by Adam"),
    source="Khan & Rue (2023), eq. 1, with the prior as the regulariser; Kingma & Ba (2015), "
    "algorithm 1",
    course=ONE_NET,
    limits=POINT,
    explained={
        "learning_rate": OF_SIZE,
        "rate": "weight of the newest squared gradient in Adam's average, 1 − β₂",
    },
)
def map(
    model: nn.Module,
    *,
    learning_rate: Rate | None = None,
    momentum: float = 0.9,
    rate: float = 1e-3,
) -> Parts:
    """The most probable weights (MAP), found by Adam on the ELBO of a posterior without variance.

    It is `torch.optim.Adam(betas=(momentum, 1 - rate))` on the mean loss plus the prior's
    `δ/(2N) ‖m‖²`; the covariance, about I/N, stays fixed.
    """
    rule = adam_steps(model, learning_rate, momentum, rate)
    return Parts(GaussianFamily(Isotropic()), AtMean(), NoCurvature(), rule)


def adam_steps(
    model: nn.Module,
    learning_rate: Rate | None = None,
    momentum: float = 0.9,
    rate: float = 1e-3,
) -> Elbo:
    """Adam's steps of the mean; the covariance stays fixed.

    By default the learning rate falls, from one that depends on the size of the net: a large rate
    finds the weights of a small net in a quarter of the steps, and a large net diverges with it.
    """
    if learning_rate is None:
        learning_rate = falling(usual_rate(model))
    return Elbo(learning_rate, optimiser=partial(Adam, betas=(momentum, 1.0 - rate)))


def usual_rate(model: nn.Module) -> float:
    """Adam's learning rate for a net with P weights: `√(10⁴/P) / 100`, from 0.001 to 0.01.

    >>> [round(usual_rate(nn.Linear(inputs, 1)), 4) for inputs in (10, 10**5, 10**7)]
    [0.01, 0.0032, 0.001]
    """
    sizes = (value.numel() for value in model.parameters() if not is_lazy(value))
    rate = _RATE_OF_SMALL * math.sqrt(_SMALL / max(sum(sizes), _SMALL))
    return max(rate, _RATE_OF_LARGE)
