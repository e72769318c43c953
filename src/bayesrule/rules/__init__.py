"""How a belief moves."""

from bayesrule.rules._base import Memory, Rule
from bayesrule.rules.momentum import Average, HeavyBall
from bayesrule.rules.natural import Natural

__all__ = ["Average", "HeavyBall", "Memory", "Natural", "Rule"]
