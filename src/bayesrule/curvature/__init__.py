"""Which second-order information of the loss is used."""

from bayesrule.curvature._base import Curvature, Here, Problem, Streams, Wanted
from bayesrule.curvature.expected import ExpectedLoss
from bayesrule.curvature.fisher import GGN, Fisher
from bayesrule.curvature.hessian import Hessian
from bayesrule.curvature.innovations import Innovations
from bayesrule.curvature.pathwise import Pathwise
from bayesrule.curvature.rows import ExampleRows, Recording
from bayesrule.curvature.second_order import SecondOrder
from bayesrule.curvature.squares import NoCurvature, PerExample, Price, SquaredGradient

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
    "SquaredGradient",
    "Streams",
    "Wanted",
]
