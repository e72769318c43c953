"""Families of beliefs over the weights."""

from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian, GaussianFamily

__all__ = ["Family", "Gaussian", "GaussianFamily", "Posterior"]
