"""How targets come from the outputs of a network."""

from bayesrule.likelihoods._base import Conditioned, Likelihood, Marginal
from bayesrule.likelihoods._classes import MISSING
from bayesrule.likelihoods._probabilities import ClassProbabilities
from bayesrule.likelihoods._targets import (
    BinaryTargets,
    ClassTargets,
    NormalTargets,
    TargetDistribution,
)
from bayesrule.likelihoods.bernoulli import BernoulliLikelihood
from bayesrule.likelihoods.categorical import CategoricalLikelihood
from bayesrule.likelihoods.gaussian import GaussianLikelihood
from bayesrule.likelihoods.heteroscedastic import HeteroscedasticLikelihood
from bayesrule.likelihoods.hierarchical import HierarchicalLikelihood
from bayesrule.likelihoods.negative_binomial import (
    NegativeBinomialLikelihood,
    NegativeBinomialTargets,
)
from bayesrule.likelihoods.one_hot import OneHotLikelihood
from bayesrule.likelihoods.poisson import PoissonLikelihood, PoissonTargets
from bayesrule.likelihoods.remax import RemaxLikelihood, SoftmaxLikelihood

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
