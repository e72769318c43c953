"""All weight draws of all nets at once, for modules that are chains of layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bayesrule.curvature import Wanted
from bayesrule.expectations import Expectation
from bayesrule.matrices import Matrix
from bayesrule.posteriors import Point, Posterior, Pull
from bayesrule.tensors import vectors
from bayesrule.types import Local, Params

# The largest number of weights drawn at once, over all nets: it saves time but takes memory.
_MOST = 1 << 25


@dataclass(frozen=True)
class SeveralDraws(Point):
    """Several draws of each net, {name: (num, draws, *shape)}; derivatives are summed over draws.

    `whole` is one point with all draws, or else `parts` are points of one draw each.
    """

    num: int
    whole: Point | None = None
    parts: tuple[Point, ...] = ()

    @classmethod
    def of(cls, parts: list[Point]) -> SeveralDraws:
        """Combines points of one draw each; a single draw has no axis of draws."""
        plain = [part.plain for part in parts]
        if len(parts) == 1:
            return cls(plain[0], 1, parts=tuple(parts))
        weights = {name: torch.stack([draw[name] for draw in plain], 1) for name in plain[0]}
        return cls(weights, len(parts), parts=tuple(parts))

    @property
    def num_draws(self) -> int:
        return self.num

    @property
    def position(self) -> Params:
        if self.whole is not None:
            return {name: value.mean(1) for name, value in self.whole.coordinates.items()}
        total = self.parts[0].coordinates
        for part in self.parts[1:]:
            total = vectors.add(total, part.coordinates)
        return vectors.scale(total, 1.0 / self.num)

    def price(self, gradient: Params) -> Matrix:
        assert self.whole is not None
        return self.whole.price(gradient)

    def pulled(self, local: Local, pull: Pull) -> Local:
        """Sums over draws whatever has an axis of them, such as gradients by one pass."""
        gradient, curvature = local.gradient, local.curvature
        if self.num > 1:
            drawn = self.coordinates
            gradient = {k: v.sum(1) if v.ndim == drawn[k].ndim else v for k, v in gradient.items()}
            curvature = curvature and curvature.summed_over_draws(self.coordinates)
        seen = self.parts[0].seen(gradient) if self.parts else gradient
        return replace(local, gradient=seen, curvature=curvature)


def several_points(
    expectation: Expectation, posterior: Posterior, generators: Any, wanted: Wanted
) -> Iterator[Point]:
    """The points of an expectation, with several draws at a time where results do not change."""
    together = wanted.structure.draws_together and wanted.curvature.draws_together
    most = max(1, _MOST // vectors.numel(posterior.mean)) if together else 1
    if drawn_at_once(expectation, posterior):
        for start in range(0, expectation.num, most):
            draws = min(most, expectation.num - start)
            if draws == 1:
                yield posterior.draw(generators)
            else:
                point = posterior.draw_several(generators, draws)
                yield SeveralDraws(point.coordinates, draws, whole=point)
        return
    points = expectation.points(posterior, generators)
    while group := list(itertools.islice(points, most)):
        first, alone = group[0], len(group) == 1
        yield first if alone and first.plain is first.coordinates else SeveralDraws.of(group)


def drawn_at_once(expectation: Expectation, posterior: Posterior) -> bool:
    """Whether one call can make several draws of the posterior."""
    return posterior.several_draws and expectation.plain_draws
