"""Families of beliefs over the weights, and what is believed before the data."""

from bayesrule.posteriors._base import ElboTerms, Family, Free, Posterior, Turn
from bayesrule.posteriors.bernoulli import Bernoulli, BernoulliFamily, BernoulliPrior
from bayesrule.posteriors.factorised import (
    Factorised,
    FreeScales,
    IndependentDraw,
    MeanField,
    MeanFieldFamily,
    StdSlope,
)
from bayesrule.posteriors.gaussian import FanIn, Gaussian, GaussianFamily, Normal
from bayesrule.posteriors.mixture import Mixture, MixtureFamily
from bayesrule.posteriors.per_group import PerGroup
from bayesrule.posteriors.point_estimate import PointBelief, PointEstimate
from bayesrule.posteriors.points import GaussianDraw, Point, Pull
from bayesrule.posteriors.prior import EarlierPosterior, GaussianPrior, Prior, as_prior
from bayesrule.posteriors.product import Product
from bayesrule.posteriors.rotated import FactoredFamily, Rotated, RotatedFamily
from bayesrule.posteriors.tied import KTied, KTiedFamily, Rank

__all__ = [
    # beliefs, and what they are moved by
    "Bernoulli", "Factorised", "Gaussian", "KTied", "MeanField", "Mixture", "Normal",
    "PointBelief", "Posterior", "Product", "Rotated", "ElboTerms", "Free", "StdSlope", "Turn",
    # their families, and how these begin
    "BernoulliFamily", "FactoredFamily", "Family", "FreeScales", "GaussianFamily", "KTiedFamily",
    "MeanFieldFamily", "MixtureFamily", "PerGroup", "PointEstimate", "RotatedFamily", "FanIn",
    "Rank",
    # the points that they make
    "GaussianDraw", "IndependentDraw", "Point", "Pull",
    # what is believed before the data
    "BernoulliPrior", "EarlierPosterior", "GaussianPrior", "Prior", "as_prior",
]  # fmt: skip
