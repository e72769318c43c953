"""Using what was learned: inference of inputs, attacks, optimisation, active learning."""

from bayesrule.explore.acquisitions import BALD, EPIG, Criterion, LargestVariance, Random
from bayesrule.explore.active import ActiveRun, active_learning
from bayesrule.explore.adversarial import Attack, attack
from bayesrule.explore.inference import Inferred, InferredInputs, infer_hidden, infer_inputs
from bayesrule.explore.optimise import Optimised, Search, minimise, optimise_inputs

__all__ = [
    "BALD",
    "EPIG",
    "ActiveRun",
    "Attack",
    "Criterion",
    "Inferred",
    "InferredInputs",
    "LargestVariance",
    "Optimised",
    "Random",
    "Search",
    "active_learning",
    "attack",
    "infer_hidden",
    "infer_inputs",
    "minimise",
    "optimise_inputs",
]
