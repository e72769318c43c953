"""Bayesian deep learning on unmodified torch modules: one learning rule, many posteriors."""

from bayesrule import explore, metrics, moments, optim, schedules
from bayesrule.curvature import (
    GGN,
    Curvature,
    Fisher,
    Hessian,
    Innovations,
    NoCurvature,
    PerExample,
    Price,
    SquaredGradient,
)
from bayesrule.expectations import AtMean, Draws, Expectation, Moments
from bayesrule.explore import (
    Attack,
    Inferred,
    InferredInputs,
    Optimised,
    Search,
    attack,
    infer_hidden,
    infer_inputs,
    minimise,
    optimise_inputs,
)
from bayesrule.fused import Fused
from bayesrule.learner import Learner
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    HierarchicalLikelihood,
    Likelihood,
    OneHotLikelihood,
    PoissonLikelihood,
    RemaxLikelihood,
    SoftmaxLikelihood,
)
from bayesrule.matrices import Dense, Diagonal, Isotropic, LowRank, Matrix, Structure, Subset
from bayesrule.memory import keep_memory
from bayesrule.methods import (
    METHODS,
    adam,
    ivon,
    laplace,
    map,
    newton,
    ogn,
    ridge,
    rmsprop,
    sgd,
    tagi,
    vogn,
)
from bayesrule.moments import uncertain
from bayesrule.posteriors import Family, FanIn, Gaussian, GaussianFamily, Posterior
from bayesrule.predict import Linearised, MonteCarlo, Probit, elbo, predict
from bayesrule.prediction import Prediction
from bayesrule.rules import Average, Conditioning, HeavyBall, Natural, Rule
from bayesrule.sequences import Online, Smoothed, smooth
from bayesrule.stacked import Stacked
from bayesrule.train import Run, TrainingError, fit, load_run
from bayesrule.types import Batch, Derivatives, Info, Params, State

__version__ = "0.1.0"

__all__ = [
    # parts
    "AtMean", "Average", "Conditioning", "Dense", "Diagonal", "Draws", "FanIn", "Fisher", "GGN",
    "GaussianFamily", "HeavyBall", "Hessian", "Innovations", "Isotropic", "LowRank", "Moments",
    "Natural", "NoCurvature", "PerExample", "Price", "SquaredGradient", "Subset",
    # contracts
    "Batch", "Curvature", "Derivatives", "Expectation", "Family", "Gaussian", "Info", "Likelihood",
    "Matrix", "Params", "Posterior", "Rule", "State", "Structure",
    # likelihoods
    "BernoulliLikelihood", "CategoricalLikelihood", "GaussianLikelihood",
    "HeteroscedasticLikelihood", "HierarchicalLikelihood", "OneHotLikelihood", "PoissonLikelihood",
    "RemaxLikelihood", "SoftmaxLikelihood",
    # learners and methods
    "METHODS", "Learner", "adam", "ivon", "laplace", "map", "newton", "ogn", "ridge", "rmsprop",
    "sgd", "tagi", "vogn",
    # training and prediction
    "Fused", "Linearised", "MonteCarlo", "Online", "Prediction", "Probit", "Run", "Smoothed",
    "Stacked", "TrainingError", "elbo", "fit", "keep_memory", "load_run", "predict", "smooth",
    "uncertain",
    # what is not a weight
    "Attack", "Inferred", "InferredInputs", "Optimised", "Search", "attack", "infer_hidden",
    "infer_inputs", "minimise", "optimise_inputs",
    # modules
    "explore", "metrics", "moments", "optim", "schedules",
]  # fmt: skip
