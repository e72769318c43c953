"""Using what was learned: inference of inputs, attacks, optimisation, active learning."""

from bayesrule.explore.acquisitions import BALD, EPIG, Criterion, LargestVariance, Random
from bayesrule.explore.active import ActiveRun, active_learning
from bayesrule.explore.adversarial import Attack, attack
from bayesrule.explore.hidden import infer_hidden
from bayesrule.explore.inference import Inferred
from bayesrule.explore.inputs import InferredInputs, infer_inputs
from bayesrule.explore.optimise import Optimised, optimise_inputs
from bayesrule.explore.search import Search, minimise

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
