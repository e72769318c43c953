"""How targets come from the outputs of a network."""

from bayesrule.likelihoods._base import Likelihood
from bayesrule.likelihoods._probabilities import MISSING, ClassProbabilities
from bayesrule.likelihoods.discrete import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    PoissonLikelihood,
)
from bayesrule.likelihoods.gaussian import GaussianLikelihood
from bayesrule.likelihoods.heteroscedastic import HeteroscedasticLikelihood
from bayesrule.likelihoods.hierarchical import HierarchicalLikelihood
from bayesrule.likelihoods.one_hot import OneHotLikelihood
from bayesrule.likelihoods.remax import RemaxLikelihood, SoftmaxLikelihood

__all__ = [
    "MISSING",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "ClassProbabilities",
    "GaussianLikelihood",
    "HeteroscedasticLikelihood",
    "HierarchicalLikelihood",
    "Likelihood",
    "OneHotLikelihood",
    "PoissonLikelihood",
    "RemaxLikelihood",
    "SoftmaxLikelihood",
]
