"""Bayesian deep learning on unmodified torch modules: one learning rule, many posteriors."""

from typing import Any

import bayesrule._starting  # noqa: F401 - before all that takes long to import
from bayesrule import (
    curvature,
    execution,
    explore,
    graphical,
    matrices,
    moments,
    optim,
    posteriors,
    schedules,
    sequences,
)
from bayesrule._renamed import renamed
from bayesrule.curvature import GGN, Fisher, PerExample
from bayesrule.curvature import Hessian as Hessian
from bayesrule.curvature import Price as Price
from bayesrule.expectations import AtMean, Draws, LocalDraws, Moments
from bayesrule.expectations import Flipout as Flipout
from bayesrule.explore import find_minima, information_gain
from bayesrule.hmc.nuts import hmc
from bayesrule.learner import Learner
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
)
from bayesrule.likelihoods._weighted import weighted
from bayesrule.matrices import Dense, Diagonal, Kronecker
from bayesrule.matrices import LowRank as LowRank
from bayesrule.methods import (
    adam,
    bayesbinn,
    dropout,
    ivon,
    k_tied,
    laplace,
    map,
    mean_field,
    mixture,
    newton,
    noisy_adam,
    noisy_ekfac,
    noisy_full,
    noisy_kfac,
    noisy_tridiagonal,
    ogn,
    ridge,
    rmsprop,
    sgd,
    smooth,
    ste,
    tagi,
    variational_laplace,
    vogn,
)
from bayesrule.moments import uncertain
from bayesrule.posteriors import (
    GaussianFamily,
    GaussianPrior,
    MeanFieldFamily,
    PerGroup,
)
from bayesrule.posteriors import KTiedFamily as KTiedFamily
from bayesrule.posteriors import PointEstimate as PointEstimate
from bayesrule.predicting import metrics
from bayesrule.predicting.predict import Linearised, predict
from bayesrule.rules import Average, Conditioning, Elbo, Natural
from bayesrule.tensors.outputs import Output as Output
from bayesrule.training.many import fit_many
from bayesrule.training.train import fit, load_run

__version__ = "0.1.0"

__all__ = [
    # methods: `br.METHOD(model, likelihood, num_data=...)` builds a learner
    "adam", "bayesbinn", "dropout", "ivon", "k_tied", "laplace", "map", "mean_field", "mixture",
    "newton", "noisy_adam", "noisy_ekfac", "noisy_full", "noisy_kfac", "noisy_tridiagonal", "ogn",
    "ridge", "rmsprop", "sgd", "ste", "tagi", "variational_laplace", "vogn",
    # likelihoods
    "BernoulliLikelihood", "CategoricalLikelihood", "GaussianLikelihood",
    "HeteroscedasticLikelihood", "NegativeBinomialLikelihood", "PoissonLikelihood",
    # learning and predicting
    "Learner", "Linearised", "find_minima", "fit", "fit_many", "hmc", "information_gain",
    "load_run", "predict", "smooth", "uncertain", "weighted",
    # parts of a method of one's own, of which there are more in the rooms below: the belief,
    "Dense", "Diagonal", "GaussianFamily", "GaussianPrior", "Kronecker", "MeanFieldFamily",
    "PerGroup",
    # where the loss is looked at, which curvature, and how the belief moves
    "AtMean", "Draws", "LocalDraws", "Moments",
    "Fisher", "GGN", "PerExample",
    "Average", "Conditioning", "Elbo", "Natural",
    # rooms with more
    "curvature", "execution", "explore", "graphical", "matrices", "metrics", "moments", "optim",
    "posteriors", "schedules", "sequences",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return renamed(name)


def __dir__() -> list[str]:
    return sorted(__all__)
