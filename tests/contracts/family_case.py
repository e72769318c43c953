"""A family of beliefs under test: a subclass gives a posterior and its `log_prob`."""

from __future__ import annotations

from functools import cache
from typing import Any

from exact import TableRows, flat, generator, randn
from torch import Tensor

from bayesrule.posteriors import Family, Posterior, Prior
from bayesrule.types import Params, Rows

PARAMS = {"w": randn(2, 2, seed=21), "b": randn(2, seed=22)}
DRAWS = 2000


class FamilyCase:
    """A family with beliefs of it, and what the tests ask of them."""

    family: Family
    params: Params = PARAMS
    names: tuple[str, ...] = tuple(PARAMS)
    """The weights that have a variance."""
    variance_follows_mean: bool = False
    """Whether the variance is a function of the mean."""

    def posterior(self, seed: int = 0) -> Posterior:
        """A belief of the family that is not the first one."""
        raise NotImplementedError

    def log_prob(self, q: Any, params: Params) -> Tensor:
        """`log q(θ)` over `names`."""
        raise NotImplementedError

    def num_parameters(self, q: Posterior) -> int:
        """How many numbers are learned."""
        return sum(value.numel() for value in q.state_dict().values())

    @property
    def like(self) -> Params:
        """The weights that have a variance."""
        return {name: self.params[name] for name in self.names}

    def part(self, params: Params) -> Tensor:
        """Those weights as one vector."""
        return flat({name: params[name] for name in self.names})

    def whole(self, params: Params) -> Tensor:
        """All weights as one vector, in the order of the parameters."""
        assert set(params) == set(self.params)
        return flat({name: params[name] for name in self.params})

    def prior(self, precision: float = 1.7) -> Prior:
        """`N(0, I / precision)` as the family has it, or the prior of one that takes no number."""
        return self.family.prior(precision if self.family.takes_precision else None, self.params)

    def drawn(self, params: Params) -> Params:
        """The weights that a tracked draw stands for, which may be a smooth stand-in for them."""
        return params

    def earlier(self, q: Posterior) -> Prior:
        """The belief as a prior."""
        return self.family.prior(q, self.params)

    def priors(self) -> list[Prior]:
        """One of each kind that the family takes."""
        return [self.prior(), self.earlier(self.posterior(1))]

    @classmethod
    @cache
    def draws(cls, kind: str = "sample") -> list[Params]:
        """Independent draws of the weights, made once for each family."""
        q, source = cls().posterior(), generator(3)
        if kind == "sample":
            return [q.sample(source) for _ in range(DRAWS)]
        points = (getattr(q, kind)(source) for _ in range(DRAWS))
        return [cls().drawn({k: v + 0.0 for k, v in point.params.items()}) for point in points]

    def rows(self, seed: int) -> Rows:
        """Rows over all weights: one vector for each of four examples."""
        return TableRows.random(self.params, 1, 4, seed=seed)
