"""Families of beliefs over the weights."""

from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.factorised import Factorised, FreeScales, MeanField, MeanFieldFamily
from bayesrule.posteriors.gaussian import FanIn, Gaussian, GaussianFamily, Normal
from bayesrule.posteriors.rotated import Rotated, RotatedFamily
from bayesrule.posteriors.tied import KTied, KTiedFamily, Rank

__all__ = [
    "Factorised",
    "Family",
    "FanIn",
    "FreeScales",
    "Gaussian",
    "GaussianFamily",
    "KTied",
    "KTiedFamily",
    "MeanField",
    "MeanFieldFamily",
    "Normal",
    "Posterior",
    "Rank",
    "Rotated",
    "RotatedFamily",
]
