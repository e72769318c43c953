"""How targets come from the outputs of a network."""

from bayesrule.likelihoods._base import Likelihood
from bayesrule.likelihoods.discrete import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    PoissonLikelihood,
)
from bayesrule.likelihoods.gaussian import GaussianLikelihood, HeteroscedasticLikelihood

__all__ = [
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "GaussianLikelihood",
    "HeteroscedasticLikelihood",
    "Likelihood",
    "PoissonLikelihood",
]
