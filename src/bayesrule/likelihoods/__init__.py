"""Likelihoods p(y | f): how targets y depend on the outputs f of a network."""

from bayesrule.likelihoods._base import Conditioned, Likelihood, Marginal
from bayesrule.likelihoods._classes import MISSING
from bayesrule.likelihoods._targets import (
    BinaryTargets,
    ClassTargets,
    NormalTargets,
    TargetDistribution,
)
from bayesrule.likelihoods.class_codes import (
    ClassProbabilities,
    HierarchicalLikelihood,
    OneHotLikelihood,
    RemaxLikelihood,
    SoftmaxLikelihood,
)
from bayesrule.likelihoods.gaussian import GaussianLikelihood, HeteroscedasticLikelihood
from bayesrule.likelihoods.logits import BernoulliLikelihood, CategoricalLikelihood
from bayesrule.likelihoods.negative_binomial import (
    NegativeBinomialLikelihood,
    NegativeBinomialTargets,
)
from bayesrule.likelihoods.poisson import PoissonLikelihood, PoissonTargets

__all__ = [
    "MISSING",
    "BernoulliLikelihood",
    "BinaryTargets",
    "CategoricalLikelihood",
    "ClassProbabilities",
    "ClassTargets",
    "Conditioned",
    "GaussianLikelihood",
    "HeteroscedasticLikelihood",
    "HierarchicalLikelihood",
    "Likelihood",
    "Marginal",
    "NegativeBinomialLikelihood",
    "NegativeBinomialTargets",
    "NormalTargets",
    "OneHotLikelihood",
    "PoissonLikelihood",
    "PoissonTargets",
    "RemaxLikelihood",
    "SoftmaxLikelihood",
    "TargetDistribution",
]
