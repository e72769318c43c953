"""Which second-order information of the loss is used."""

from bayesrule.curvature._base import Curvature, Here, Problem, Streams, Wanted
from bayesrule.curvature.estimates import (
    GGN,
    Fisher,
    Hessian,
    NoCurvature,
    PerExample,
    Price,
    SquaredGradient,
)
from bayesrule.curvature.rows import ExampleRows, Recording
from bayesrule.curvature.spreads import ExpectedLoss, Innovations, Pathwise, SecondOrder

__all__ = [
    # estimates at weights
    "Curvature", "Fisher", "GGN", "Hessian", "NoCurvature", "PerExample", "Price",
    "SquaredGradient",
    # estimates of the spread
    "ExpectedLoss", "Innovations", "Pathwise", "SecondOrder",
    # what they are given, and gradients of single examples
    "Here", "Problem", "Streams", "Wanted", "ExampleRows", "Recording",
]  # fmt: skip
