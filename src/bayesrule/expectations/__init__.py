"""Where the loss is looked at."""

from bayesrule.expectations._base import Expectation, Look
from bayesrule.expectations.at_mean import AtMean
from bayesrule.expectations.draws import Draws
from bayesrule.expectations.layerwise import Flipout, Layerwise, LocalDraws
from bayesrule.expectations.moments import Moments

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
