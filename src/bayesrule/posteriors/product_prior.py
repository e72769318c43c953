"""The prior of a product of beliefs: one for each group of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.matrices import BlockMatrix, Matrix
from bayesrule.matrices.blocks import pick
from bayesrule.posteriors.prior import Prior
from bayesrule.types import Params

Names = tuple[str, ...]


@dataclass(frozen=True)
class ProductPrior(Prior):
    """The prior of each group of weights."""

    parts: dict[str, Prior]
    groups: dict[str, Names]

    @property
    def proper(self) -> bool:
        return all(part.proper for part in self.parts.values())

    def pull_(self, gradient: Params, at: Params, factor: float | Tensor = 1.0) -> Params:
        for group, part in self.parts.items():
            names = [name for name in self.groups[group] if name in gradient]
            part.pull_(pick(gradient, names), pick(at, names), factor)
        return gradient

    def added_to(self, curvature: Matrix) -> Matrix:
        blocks = {
            group: part.added_to(curvature.only(self.groups[group]))
            for group, part in self.parts.items()
        }
        return BlockMatrix(blocks, self.groups)

    def diagonal(self, like: Params) -> Params:
        found: Params = {}
        for group, part in self.parts.items():
            names = pick(like, [name for name in self.groups[group] if name in like])
            one = part.diagonal(names)
            found |= (
                one
                if isinstance(one, dict)
                else {k: torch.full_like(v, one) for k, v in names.items()}
            )
        return found

    def log_prob(self, params: Params) -> Tensor:
        each = self.parts.items()
        parts = [part.log_prob(pick(params, self.groups[group])) for group, part in each]
        return sum(parts[1:], parts[0])

    def describe(self) -> Any:
        return {group: part.describe() for group, part in self.parts.items()}

    def of(self, group: str) -> Prior:
        """The prior of one group."""
        return self.parts[group]


def prior_of(prior: Prior, group: str) -> Prior:
    """The prior of one group of weights."""
    return prior.of(group) if isinstance(prior, ProductPrior) else prior
