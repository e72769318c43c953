"""Methods for binary weights: the straight-through estimator and BayesBiNN."""

from __future__ import annotations

from torch import nn

from bayesrule.curvature import Curvature, NoCurvature, PerExample
from bayesrule.expectations import AtMode, Draws
from bayesrule.matrices import Diagonal
from bayesrule.methods._record import Need, Parts, Rate, method
from bayesrule.methods._words import AT_DRAWS
from bayesrule.posteriors import BernoulliFamily, Family, GaussianFamily, PerGroup
from bayesrule.rules import Average, Natural
from bayesrule.schedules import falling

BINARY = "independent binary weights (`BernoulliFamily`); real ones by name or layer (`Diagonal`)"
SLOPES = "none (`NoCurvature`); squares of single examples for real weights (`PerExample`)"
REAL = (
    "which weights are real numbers: a pattern of names such as '*.bias', or a class of layers "
    "such as nn.BatchNorm1d; None: all binary"
)
Real = str | type[nn.Module] | None


@method(
    words=(
        BINARY,
        "at the signs of the natural parameters (`AtMode`)",
        SLOPES,
        "natural gradient with momentum and without the pull of entropy and prior; natural "
        "parameters stay within ±1",
    ),
    source="Bengio, Léonard & Courville (2013); Courbariaux, Bengio & David (2015), algorithm 1; "
    "Khan & Rue (2023), sec. 4.5, eq. 48",
    needs=(Need.SCALED_LAYERS,),
    limits="predicts with the signs alone, and has no probabilities of its own; weights are ±1; "
    "there is no prior precision",
    lacks=("prior_precision",),
    explained={"real": REAL},
    represented_by="bayesbinn",
)
def ste(*, learning_rate: Rate = falling(1e-3), momentum: float = 0.9, real: Real = None) -> Parts:
    """Straight-through estimator: latent weights follow the gradient at their signs."""
    family, curvature = _with_real(BernoulliFamily(straight=True), real)
    rule = Natural(learning_rate, learning_rate, Average(momentum))
    return Parts(family, AtMode(), curvature, rule, AtMode())


@method(
    words=(
        BINARY,
        AT_DRAWS,
        SLOPES,
        "natural gradient with momentum, which moves the natural parameters",
    ),
    source="Meng, Bachmann & Khan (2020), algorithm 1; Khan & Rue (2023), sec. 4.5, eq. 52",
    needs=(Need.SCALED_LAYERS, Need.DRAWS),
    limits="weights are ±1; there is no prior precision",
    lacks=("prior_precision",),
    explained={
        "real": REAL,
        "sure": "size of the initial natural parameters; at 10, as in the paper, signs hardly move",
        "relaxation": "temperature of the smooth draws at which gradients are computed",
    },
)
def bayesbinn(
    *,
    learning_rate: Rate = falling(1e-3),
    momentum: float = 0.9,
    draws: int = 1,
    real: Real = None,
    sure: float = 1.0,
    relaxation: float = 0.5,
) -> Parts:
    """BayesBiNN: binary weights, each with a probability learned by natural gradients."""
    family, curvature = _with_real(BernoulliFamily(sure, relaxation), real)
    rule = Natural(learning_rate, learning_rate, Average(momentum))
    return Parts.at_draws(family, Draws(draws), curvature, rule)


def _with_real(binary: BernoulliFamily, real: Real) -> tuple[Family, Curvature]:
    """The family with real weights beside the binary ones, and the curvature that they need."""
    if real is None:
        return binary, NoCurvature()
    return PerGroup({real: GaussianFamily(Diagonal()), "*": binary}), PerExample()
