"""How a belief moves."""

from bayesrule.rules._base import Memory, RatedRule, Rule
from bayesrule.rules.conditioning import Conditioning
from bayesrule.rules.elbo import Elbo, Rates
from bayesrule.rules.momentum import Average, HeavyBall, Velocity
from bayesrule.rules.natural import Natural
from bayesrule.rules.noisy import Noisy

__all__ = [
    "Average",
    "Conditioning",
    "Elbo",
    "HeavyBall",
    "Memory",
    "Natural",
    "Noisy",
    "RatedRule",
    "Rates",
    "Rule",
    "Velocity",
]
