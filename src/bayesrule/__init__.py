"""Bayesian deep learning on unmodified torch modules: one learning rule, many posteriors."""

from bayesrule import explore, moments, optim, schedules
from bayesrule.curvature import (
    GGN,
    Curvature,
    ExpectedLoss,
    Fisher,
    Hessian,
    Innovations,
    NoCurvature,
    Pathwise,
    PerExample,
    Price,
    SecondOrder,
    SquaredGradient,
)
from bayesrule.execution.compiled import Fused
from bayesrule.execution.memory import keep_memory
from bayesrule.execution.replayed import Replayed
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.expectations import AtMean, Draws, Expectation, Flipout, LocalDraws, Moments
from bayesrule.explore import (
    BALD,
    EPIG,
    ActiveRun,
    Attack,
    Criterion,
    Inferred,
    InferredInputs,
    LargestVariance,
    Optimised,
    Random,
    Search,
    active_learning,
    attack,
    infer_hidden,
    infer_inputs,
    minimise,
    optimise_inputs,
)
from bayesrule.hmc import Samples, hmc
from bayesrule.learner import Learner
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    HierarchicalLikelihood,
    Likelihood,
    NegativeBinomialLikelihood,
    OneHotLikelihood,
    PoissonLikelihood,
    RemaxLikelihood,
    SoftmaxLikelihood,
)
from bayesrule.matrices import (
    BlockTridiagonal,
    Dense,
    Diagonal,
    Isotropic,
    Kronecker,
    LowRank,
    Matrix,
    Structure,
    Subset,
)
from bayesrule.methods import (
    METHODS,
    adam,
    ivon,
    k_tied,
    laplace,
    map,
    mean_field,
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
    tagi,
    variational_laplace,
    vogn,
)
from bayesrule.methods.smooth import smooth
from bayesrule.moments import uncertain
from bayesrule.posteriors import (
    Factorised,
    Family,
    FanIn,
    Gaussian,
    GaussianFamily,
    KTied,
    KTiedFamily,
    MeanField,
    MeanFieldFamily,
    Posterior,
    Rotated,
    RotatedFamily,
)
from bayesrule.predicting import metrics
from bayesrule.predicting.predict import Linearised, MonteCarlo, Probit, elbo, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.predicting.signal_to_noise import SignalToNoise
from bayesrule.predicting.spectra import Spectrum, compress, compressed_parameters, spectrum
from bayesrule.rules import Average, Conditioning, Elbo, HeavyBall, Natural, Noisy, Rule, Velocity
from bayesrule.sequences import Online, Smoothed, rts_smoother
from bayesrule.training.many import fit_many
from bayesrule.training.train import Run, TrainingError, fit, load_run
from bayesrule.types import Batch, Derivatives, Info, Params, State

__version__ = "0.1.0"

__all__ = [
    # parts
    "AtMean", "Average", "BlockTridiagonal", "Conditioning", "Dense", "Diagonal", "Draws", "Elbo",
    "ExpectedLoss", "FanIn", "Fisher", "Flipout", "GGN", "GaussianFamily", "HeavyBall", "Hessian",
    "Innovations", "Isotropic", "KTiedFamily", "Kronecker", "LocalDraws", "LowRank",
    "MeanFieldFamily", "Moments", "Natural", "NoCurvature", "Noisy", "Pathwise", "PerExample",
    "Price", "RotatedFamily", "SecondOrder", "SquaredGradient", "Subset", "Velocity",
    # contracts
    "Batch", "Curvature", "Derivatives", "Expectation", "Factorised", "Family", "Gaussian", "Info",
    "KTied", "Likelihood", "Matrix", "MeanField", "Params", "Posterior", "Rotated", "Rule", "State",
    "Structure",
    # likelihoods
    "BernoulliLikelihood", "CategoricalLikelihood", "GaussianLikelihood",
    "HeteroscedasticLikelihood", "HierarchicalLikelihood", "NegativeBinomialLikelihood",
    "OneHotLikelihood", "PoissonLikelihood", "RemaxLikelihood", "SoftmaxLikelihood",
    # learners and methods
    "Learner", "METHODS", "adam", "ivon", "k_tied", "laplace", "map", "mean_field", "newton",
    "noisy_adam", "noisy_ekfac", "noisy_full", "noisy_kfac", "noisy_tridiagonal", "ogn", "ridge",
    "rmsprop", "sgd", "tagi", "variational_laplace", "vogn",
    # the reference posterior
    "Samples", "hmc",
    # training and prediction
    "Fused", "Linearised", "MonteCarlo", "Online", "Prediction", "Probit", "Replayed", "Run",
    "Smoothed", "Stacked", "TrainingError", "elbo", "fit", "fit_many", "keep_memory", "load_run",
    "predict", "rts_smoother", "smooth", "uncertain",
    # looking into a belief
    "SignalToNoise", "Spectrum", "compress", "compressed_parameters", "spectrum",
    # what is not a weight
    "Attack", "Inferred", "InferredInputs", "Optimised", "Search", "attack", "infer_hidden",
    "infer_inputs", "minimise", "optimise_inputs",
    # what to have labelled
    "ActiveRun", "BALD", "Criterion", "EPIG", "LargestVariance", "Random", "active_learning",
    # modules
    "explore", "metrics", "moments", "optim", "schedules",
]  # fmt: skip
