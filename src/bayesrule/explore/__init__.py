"""Using what was learned: inputs and hidden units inferred, attacks, optimisation of inputs."""

from bayesrule.explore.adversarial import Attack, attack
from bayesrule.explore.glance import Inferred
from bayesrule.explore.hidden import infer_hidden
from bayesrule.explore.inputs import InferredInputs, infer_inputs
from bayesrule.explore.optimise import Optimised, optimise_inputs
from bayesrule.explore.search import Search, minimise

__all__ = [
    "Attack",
    "Inferred",
    "InferredInputs",
    "Optimised",
    "Search",
    "attack",
    "infer_hidden",
    "infer_inputs",
    "minimise",
    "optimise_inputs",
]
