"""Exponential families: natural and expectation parameters, A, entropy, KL and draws."""

from bayesrule.families._base import ExponentialFamily, ImproperError, Natural
from bayesrule.families.discrete import Bernoulli, Categorical
from bayesrule.families.gaussian import DiagonalGaussian, Gaussian, Normal
from bayesrule.families.mixture import Mixture
from bayesrule.families.positive import Beta, Dirichlet, Gamma
from bayesrule.families.wishart import NormalWishart

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Dirichlet",
    "ExponentialFamily",
    "Gamma",
    "Gaussian",
    "ImproperError",
    "Mixture",
    "Natural",
    "Normal",
    "NormalWishart",
]
