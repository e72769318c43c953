"""The points at which the loss is evaluated."""

from bayesrule.expectations._base import Expectation, Look
from bayesrule.expectations.layerwise import Flipout, Layerwise, LocalDraws
from bayesrule.expectations.points import AtMean, AtMode, Draws, Masks, Moments

__all__ = [
    "AtMean",
    "AtMode",
    "Draws",
    "Expectation",
    "Flipout",
    "Layerwise",
    "LocalDraws",
    "Look",
    "Masks",
    "Moments",
]
