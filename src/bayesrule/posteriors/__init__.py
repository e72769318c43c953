"""Families of beliefs over the weights."""

from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import FanIn, Gaussian, GaussianFamily

__all__ = ["Family", "FanIn", "Gaussian", "GaussianFamily", "Posterior"]
