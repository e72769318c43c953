"""Products of posteriors: groups of weights, each with its own posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.matrices import BlockMatrix, Matrix
from bayesrule.matrices.blocks import Names, pick
from bayesrule.posteriors._base import ElboTerms, Free, Posterior, Turn
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import Prior, as_prior
from bayesrule.tensors.abilities import derived, every, some
from bayesrule.types import Local, Number, Params


def _union(parts: Iterable[Params]) -> Params:
    return reduce(lambda a, b: a | b, parts, {})


@dataclass(frozen=True)
class ProductPrior(Prior):
    """A prior for each group of weights."""

    parts: dict[str, Prior]
    groups: dict[str, Names]

    proper = every("parts", "proper")

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
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
        diagonal: Params = {}
        for group, part in self.parts.items():
            params = pick(like, [name for name in self.groups[group] if name in like])
            value = part.diagonal(params)
            diagonal |= (
                value
                if isinstance(value, dict)
                else {k: torch.full_like(v, value) for k, v in params.items()}
            )
        return diagonal

    def log_prob(self, params: Params) -> Tensor:
        return _sum(
            part.log_prob(pick(params, self.groups[group])) for group, part in self.parts.items()
        )

    def describe(self) -> Any:
        return {group: part.describe() for group, part in self.parts.items()}


def prior_of(prior: Prior, group: str) -> Prior:
    """The prior of one group of weights."""
    return prior.parts[group] if isinstance(prior, ProductPrior) else prior


@dataclass(frozen=True)
class ProductPoint(Point):
    """A point for each group of weights."""

    parts: dict[str, Point]
    groups: dict[str, Names]

    @classmethod
    def of(cls, parts: dict[str, Point], groups: dict[str, Names]) -> ProductPoint:
        """The points of all groups, joined."""
        return cls(_union(part.coordinates for part in parts.values()), parts, groups)

    def weights(self, coordinates: Params) -> Params:
        return _union(
            part.weights(pick(coordinates, part.coordinates)) for part in self.parts.values()
        )

    @property
    def plain(self) -> Params:
        return _union(part.plain for part in self.parts.values())

    def seen(self, gradient: Params) -> Params:
        return _union(part.seen(pick(gradient, part.plain)) for part in self.parts.values())

    def price(self, gradient: Params) -> Matrix:
        blocks = {
            group: part.price(pick(gradient, part.coordinates))
            for group, part in self.parts.items()
        }
        return BlockMatrix(blocks, self.groups)

    def pulled(self, local: Local, pull: Pull) -> Local:
        if not any(part.pulls for part in self.parts.values()):
            return local
        pulled = {
            group: part.pulled(
                _local_of(local, tuple(part.coordinates)),
                pull._replace(prior=prior_of(pull.prior, group)),
            )
            for group, part in self.parts.items()
        }
        gradient = _union(part.gradient for part in pulled.values())
        if local.curvature is None:
            return replace(local, gradient=gradient)
        blocks = {
            group: part.curvature for group, part in pulled.items() if part.curvature is not None
        }
        return replace(local, gradient=gradient, curvature=BlockMatrix(blocks, self.groups))

    def mirrored(self) -> ProductPoint:
        parts = {group: part.mirrored() for group, part in self.parts.items()}
        return ProductPoint.of(parts, self.groups)


def _local_of(local: Local, names: Names) -> Local:
    curvature = None if local.curvature is None else local.curvature.only(names)
    return replace(local, gradient=pick(local.gradient, names), curvature=curvature)


@dataclass(frozen=True, repr=False)
class Product(Posterior):
    """`q(θ) = Π q_g(θ_g)`: one posterior for each group of weights."""

    parts: dict[str, Posterior]
    groups: dict[str, Names]
    names: Names = ()
    """All weights in the order of the module; if empty, they come group by group."""

    independent = every("parts", "independent")
    linearisable = every("parts", "linearisable")
    must_track = some("parts", "must_track")

    def words(self) -> str:
        return f"Product of {' and '.join(part.words() for part in self.parts.values())}"

    def _joined(self, function: Callable[[Posterior], Params]) -> Params:
        params = _union(function(part) for part in self.parts.values())
        return {name: params[name] for name in self.names or params if name in params}

    @derived
    def mean(self) -> Params:
        return self._joined(lambda part: part.mean)

    def variance(self) -> Params:
        return self._joined(lambda part: part.variance())

    def std(self) -> Params:
        return self._joined(lambda part: part.std())

    def uncertain_variance(self) -> Params:
        return self._joined(lambda part: part.uncertain_variance())

    def sample(self, generator: Generator) -> Params:
        return self._joined(lambda part: part.sample(generator))

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return _sum(part.entropy(generator) for part in self.parts.values())

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        return _sum(
            part.kl(prior_of(as_prior(prior), group), generator)
            for group, part in self.parts.items()
        )

    @property
    def precision(self) -> BlockMatrix:
        """The precision of all groups, if all are Gaussian."""
        blocks = {group: part.precision for group, part in self.parts.items()}  # type: ignore[attr-defined]
        return BlockMatrix(blocks, self.groups)

    def _point(self, function: Callable[[Posterior], Point]) -> Point:
        parts = {group: function(part) for group, part in self.parts.items()}
        return ProductPoint.of(parts, self.groups)

    def at_mean(self) -> Point:
        return self._point(lambda part: part.at_mean())

    def at_mode(self) -> Point:
        return self._point(lambda part: part.at_mode())

    def draw(self, generator: Generator) -> Point:
        return self._point(lambda part: part.draw(generator))

    def untracked(self, generator: Generator) -> Point:
        return self._point(lambda part: part.untracked(generator))

    def masked(self, generator: Generator) -> Point:
        return self._point(lambda part: part.masked(generator))

    def coordinates(self) -> Gaussian:
        parts = {group: part.coordinates() for group, part in self.parts.items()}
        mean = _union(part.mean for part in parts.values())
        return Gaussian(mean, BlockMatrix({k: v.precision for k, v in parts.items()}, self.groups))

    def with_mean(self, mean: Params) -> Product:
        parts = {
            group: part.with_mean(pick(mean, part.coordinates().mean))
            for group, part in self.parts.items()
        }
        return replace(self, parts=parts)

    def with_precision(self, precision: Matrix) -> tuple[Product, Turn | None]:
        moved = {
            group: part.with_precision(precision.only(self.groups[group]))
            for group, part in self.parts.items()
        }
        assert all(turn is None for _, turn in moved.values())
        return replace(self, parts={group: part for group, (part, _) in moved.items()}), None

    def free(self) -> Free:
        return _by_kind(part.free() for part in self.parts.values())

    def free_gradients(self, terms: ElboTerms) -> Free:
        def of_group(group: str) -> Free:
            names, curvature = self.groups[group], terms.curvature
            part = terms._replace(
                gradient=pick(terms.gradient, names),
                curvature=None if curvature is None else curvature.only(names),
                prior=prior_of(terms.prior, group),
            )
            return self.parts[group].free_gradients(part)

        return _by_kind(map(of_group, self.parts))

    def anew(self) -> Product:
        return replace(self, parts={group: part.anew() for group, part in self.parts.items()})

    def fault(self) -> str | None:
        return next((fault for part in self.parts.values() if (fault := part.fault())), None)


def _by_kind(parts: Iterable[Free]) -> Free:
    free: Free = {}
    for part in parts:
        for kind, tensors in part.items():
            free[kind] = free.get(kind, {}) | tensors
    return free


def _sum(values: Iterable[Tensor]) -> Tensor:
    first, *others = values
    return sum(others, first)
