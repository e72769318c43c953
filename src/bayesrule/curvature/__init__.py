"""Estimates of the second derivatives of the loss."""

from bayesrule.curvature._base import Curvature, Here, Problem, Wanted
from bayesrule.curvature.estimates import (
    GGN,
    Fisher,
    Hessian,
    NoCurvature,
    PerExample,
    Price,
    SquaredGradient,
)
from bayesrule.curvature.loose_rows import SlowRowsWarning
from bayesrule.curvature.rows import ExampleRows, Recording
from bayesrule.curvature.spreads import ExpectedLoss, Innovations, Pathwise, SecondOrder

__all__ = [
    "GGN",
    "Curvature",
    "ExampleRows",
    "ExpectedLoss",
    "Fisher",
    "Here",
    "Hessian",
    "Innovations",
    "NoCurvature",
    "Pathwise",
    "PerExample",
    "Price",
    "Problem",
    "Recording",
    "SecondOrder",
    "SlowRowsWarning",
    "SquaredGradient",
    "Wanted",
]
