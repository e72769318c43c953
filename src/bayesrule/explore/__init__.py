"""Using what was learned: inference of inputs, attacks, optimisation, active learning."""

from bayesrule.explore.acquisitions import BALD, EPIG, Criterion, LargestVariance, Random
from bayesrule.explore.active import ActiveRun, active_learning
from bayesrule.explore.adversarial import Attack, attack
from bayesrule.explore.inference import Inferred, InferredInputs, infer_hidden, infer_inputs
from bayesrule.explore.optimise import Optimised, Search, minimise, optimise_inputs

__all__ = [
    # active learning
    "ActiveRun", "BALD", "Criterion", "EPIG", "LargestVariance", "Random", "active_learning",
    # inputs and hidden units that explain an output, and attacks
    "Attack", "Inferred", "InferredInputs", "attack", "infer_hidden", "infer_inputs",
    # inputs of the best output
    "Optimised", "Search", "minimise", "optimise_inputs",
]  # fmt: skip
