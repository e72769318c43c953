"""Where the loss is looked at."""

from bayesrule.expectations._base import Expectation, Look
from bayesrule.expectations.layerwise import Flipout, Layerwise, LocalDraws
from bayesrule.expectations.points import AtMean, Draws, Moments

__all__ = [
    "AtMean",
    "Draws",
    "Expectation",
    "Flipout",
    "Layerwise",
    "LocalDraws",
    "Look",
    "Moments",
]
