"""A reference posterior for small networks: draws of the weights by the No-U-Turn sampler."""

from bayesrule.hmc.density import LogDensity
from bayesrule.hmc.mixing import ess, rhat
from bayesrule.hmc.nuts import Samples, hmc

__all__ = ["LogDensity", "Samples", "ess", "hmc", "rhat"]
