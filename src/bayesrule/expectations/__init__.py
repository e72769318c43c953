"""Where the loss is looked at."""

from bayesrule.expectations._base import Expectation, Point
from bayesrule.expectations.at_mean import AtMean
from bayesrule.expectations.draws import Draws

__all__ = ["AtMean", "Draws", "Expectation", "Point"]
