"""How a belief moves."""

from bayesrule.rules._base import Memory, Rule
from bayesrule.rules.conditioning import Conditioning
from bayesrule.rules.elbo import Elbo, Rates
from bayesrule.rules.momentum import Average, HeavyBall
from bayesrule.rules.natural import Natural

__all__ = ["Average", "Conditioning", "Elbo", "HeavyBall", "Memory", "Natural", "Rates", "Rule"]
