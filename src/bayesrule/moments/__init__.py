"""Gaussians through unmodified modules: the Gaussian tensor and its table of rules."""

from bayesrule.moments import convolution, pooling, product, shape
from bayesrule.moments.activations import elementwise
from bayesrule.moments.choices import Activations, LocallyLinear, MomentMatched
from bayesrule.moments.propagate import Propagation
from bayesrule.moments.tensor import (
    RULES,
    GaussianTensor,
    Innovation,
    NoRule,
    Pass,
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
    "Pass",
    "Propagation",
    "convolution",
    "elementwise",
    "pooling",
    "product",
    "rule",
    "shape",
    "uncertain",
]
