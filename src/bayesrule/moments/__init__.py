"""Propagates Gaussians through unmodified modules: the Gaussian tensor and its rules."""

# Importing each of these modules registers its rules.
from bayesrule.moments import (  # noqa: F401
    arithmetic,
    attention,
    norm,
    pooling,
    product,
    recurrent,
    shape,
    softmax,
)
from bayesrule.moments.activations import elementwise, through
from bayesrule.moments.inputs import over_inputs
from bayesrule.moments.propagate import Propagation
from bayesrule.moments.tensor import (
    RULES,
    Activations,
    GaussianTensor,
    Innovation,
    LocallyLinear,
    MomentMatched,
    NoRule,
    Tape,
    innovation,
    rule,
    uncertain,
)

__all__ = [
    "RULES",
    "Activations",
    "GaussianTensor",
    "Innovation",
    "LocallyLinear",
    "MomentMatched",
    "NoRule",
    "Propagation",
    "Tape",
    "elementwise",
    "innovation",
    "over_inputs",
    "rule",
    "through",
    "uncertain",
]
