"""Families of posteriors over the weights, and their priors."""

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
from bayesrule.posteriors.spike_slab import SpikeSlab, SpikeSlabFamily
from bayesrule.posteriors.tied import KTied, KTiedFamily, Rank

__all__ = [
    "Bernoulli",
    "BernoulliFamily",
    "BernoulliPrior",
    "EarlierPosterior",
    "ElboTerms",
    "Factorised",
    "FactoredFamily",
    "Family",
    "FanIn",
    "Free",
    "FreeScales",
    "Gaussian",
    "GaussianDraw",
    "GaussianFamily",
    "GaussianPrior",
    "IndependentDraw",
    "KTied",
    "KTiedFamily",
    "MeanField",
    "MeanFieldFamily",
    "Mixture",
    "MixtureFamily",
    "Normal",
    "PerGroup",
    "Point",
    "PointBelief",
    "PointEstimate",
    "Posterior",
    "Prior",
    "Product",
    "Pull",
    "Rank",
    "Rotated",
    "RotatedFamily",
    "SpikeSlab",
    "SpikeSlabFamily",
    "StdSlope",
    "Turn",
    "as_prior",
]
