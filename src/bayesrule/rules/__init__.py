"""Rules: how a posterior moves."""

from bayesrule.rules._base import Memory, Now, Rule
from bayesrule.rules.conditioning import Conditioning
from bayesrule.rules.elbo import Elbo, ElboRates
from bayesrule.rules.momentum import Average, HeavyBall, Momentum, Velocity
from bayesrule.rules.natural import Natural, NaturalRates

__all__ = [
    "Average",
    "Conditioning",
    "Elbo",
    "ElboRates",
    "HeavyBall",
    "Memory",
    "Momentum",
    "Natural",
    "NaturalRates",
    "Now",
    "Rule",
    "Velocity",
]
