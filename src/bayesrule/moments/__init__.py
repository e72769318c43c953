"""Gaussians through unmodified modules: the Gaussian tensor and its table of rules."""

# Each of these modules puts its rules into the table.
from bayesrule.moments import (  # noqa: F401
    arithmetic,
    attention,
    convolution,
    dropout,
    embedding,
    indexing,
    joining,
    multihead,
    norm,
    pooling,
    product,
    recurrent,
    shape,
    softmax,
)
from bayesrule.moments.activations import elementwise, through
from bayesrule.moments.choices import Activations, LocallyLinear, MomentMatched
from bayesrule.moments.propagate import Propagation
from bayesrule.moments.tensor import (
    RULES,
    GaussianTensor,
    Innovation,
    NoRule,
    Tape,
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
    "rule",
    "through",
    "uncertain",
]
