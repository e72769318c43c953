"""Using a posterior: inference of inputs, attacks, optimisation, active learning, bandits."""

from bayesrule.explore.acquisitions import BALD, EPIG, Criterion, LargestVariance, Random
from bayesrule.explore.active import ActiveRun, active_learning
from bayesrule.explore.adversarial import Attack, attack
from bayesrule.explore.bandit import (
    Bandit,
    EpsilonGreedy,
    InformationDirected,
    Policy,
    Thompson,
    UpperBound,
    Value,
    beside,
    by_action,
    doubly_robust,
    inverse_propensity,
)
from bayesrule.explore.chain import step_chain
from bayesrule.explore.derivatives import DerivativeMoments, derivative_moments
from bayesrule.explore.inference import Inferred, InferredInputs, infer_hidden, infer_inputs
from bayesrule.explore.information import information_gain
from bayesrule.explore.minima import Minima, find_minima
from bayesrule.explore.mixture_descent import FullMixture
from bayesrule.explore.optimise import Optimised, Search, minimise, optimise_inputs
from bayesrule.explore.thompson import DrawnFunction, draw_function, draw_marginals

__all__ = [
    "BALD",
    "EPIG",
    "EpsilonGreedy",
    "InformationDirected",
    "Policy",
    "Thompson",
    "UpperBound",
    "Value",
    "beside",
    "by_action",
    "doubly_robust",
    "inverse_propensity",
    "DrawnFunction",
    "ActiveRun",
    "Attack",
    "Bandit",
    "Criterion",
    "DerivativeMoments",
    "FullMixture",
    "Inferred",
    "InferredInputs",
    "LargestVariance",
    "Minima",
    "Optimised",
    "Random",
    "Search",
    "active_learning",
    "attack",
    "derivative_moments",
    "draw_function",
    "draw_marginals",
    "find_minima",
    "infer_hidden",
    "infer_inputs",
    "information_gain",
    "minimise",
    "optimise_inputs",
    "step_chain",
]
