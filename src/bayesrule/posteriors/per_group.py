"""Products of families: groups of weights by name or pattern, each with a belief of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from torch import Generator, Tensor, nn

from bayesrule.matrices import BlockMatrix, Blocks, Matrix, Structure
from bayesrule.matrices.blocks import grouped, pick
from bayesrule.posteriors._base import Family, Free, Posterior, Turn
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import Prior, as_prior
from bayesrule.posteriors.product_prior import ProductPrior, prior_of
from bayesrule.posteriors.rotated import RotatedFamily
from bayesrule.types import Local, Params

Names = tuple[str, ...]


def _union(parts: Iterable[Params]) -> Params:
    return reduce(lambda a, b: a | b, parts, {})


@dataclass(frozen=True)
class ProductPoint(Point):
    """A point of each group."""

    parts: dict[str, Point]
    groups: dict[str, Names]

    @classmethod
    def of(cls, parts: dict[str, Point], groups: dict[str, Names]) -> ProductPoint:
        """The points of all groups together."""
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
        found = {
            group: part.pulled(
                _local_of(local, tuple(part.coordinates)),
                pull._replace(prior=prior_of(pull.prior, group)),
            )
            for group, part in self.parts.items()
        }
        gradient = _union(part.gradient for part in found.values())
        if local.curvature is None:
            return replace(local, gradient=gradient)
        blocks = {
            group: part.curvature for group, part in found.items() if part.curvature is not None
        }
        return replace(local, gradient=gradient, curvature=BlockMatrix(blocks, self.groups))

    def mirrored(self) -> ProductPoint:
        parts = {group: part.mirrored() for group, part in self.parts.items()}
        return ProductPoint.of(parts, self.groups)


def _local_of(local: Local, names: Names) -> Local:
    curvature = None if local.curvature is None else local.curvature.only(names)
    return replace(local, gradient=pick(local.gradient, names), curvature=curvature)


@dataclass(frozen=True)
class Product(Posterior):
    """`q(θ) = Π q_g(θ_g)`: a belief for each group of weights."""

    parts: dict[str, Posterior]
    groups: dict[str, Names]
    names: Names = ()
    """All weights in the order of the module; without it they come group by group."""

    __repr__ = Posterior.__repr__

    def words(self) -> str:
        return f"Product of {' and '.join(part.words() for part in self.parts.values())}"

    def _each(self, function: Callable[[Posterior], Params]) -> Params:
        found = _union(function(part) for part in self.parts.values())
        return {name: found[name] for name in self.names or found if name in found}

    @property
    def mean(self) -> Params:  # type: ignore[override]
        return self._each(lambda part: part.mean)

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """Whether the weights of all groups are."""
        return all(part.independent for part in self.parts.values())

    @property
    def linearisable(self) -> bool:  # type: ignore[override]
        """Whether all groups are Gaussian."""
        return all(part.linearisable for part in self.parts.values())

    @property
    def must_track(self) -> bool:  # type: ignore[override]
        """Whether the draws of some group are."""
        return any(part.must_track for part in self.parts.values())

    @property
    def num_parameters(self) -> int:
        return sum(part.num_parameters for part in self.parts.values())

    def variance(self) -> Params:
        return self._each(lambda part: part.variance())

    def std(self) -> Params:
        return self._each(lambda part: part.std())

    def uncertain_variance(self) -> Params:
        return self._each(lambda part: part.uncertain_variance())

    def untracked(self, generator: Generator) -> Point:
        parts = {group: part.untracked(generator) for group, part in self.parts.items()}
        return ProductPoint.of(parts, self.groups)

    def sample(self, generator: Generator) -> Params:
        return self._each(lambda part: part.sample(generator))

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return _sum(part.entropy(generator) for part in self.parts.values())

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        return _sum(
            part.kl(prior_of(as_prior(prior), group), generator)
            for group, part in self.parts.items()
        )

    @property
    def precision(self) -> BlockMatrix:
        """The precision of all groups, where all are Gaussian."""
        blocks = {group: part.precision for group, part in self.parts.items()}  # type: ignore[attr-defined]
        return BlockMatrix(blocks, self.groups)

    def at_mean(self) -> Point:
        return ProductPoint.of({k: part.at_mean() for k, part in self.parts.items()}, self.groups)

    def draw(self, generator: Generator) -> Point:
        parts = {group: part.draw(generator) for group, part in self.parts.items()}
        return ProductPoint.of(parts, self.groups)

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
        found = {
            group: part.with_precision(precision.only(self.groups[group]))
            for group, part in self.parts.items()
        }
        assert all(turn is None for _, turn in found.values())
        return replace(self, parts={group: part for group, (part, _) in found.items()}), None

    def free(self) -> Free:
        found: Free = {}
        for part in self.parts.values():
            for kind, tensors in part.free().items():
                found[kind] = found.get(kind, {}) | tensors
        return found

    def free_gradients(
        self,
        gradient: Params,
        curvature: Matrix | None,
        prior: Prior,
        kl_weight: float | Tensor,
        share: float | Tensor,
    ) -> Free:
        found: Free = {}
        for group, part in self.parts.items():
            names = self.groups[group]
            one = None if curvature is None else curvature.only(names)
            parts = part.free_gradients(
                pick(gradient, names), one, prior_of(prior, group), kl_weight, share
            )
            for kind, tensors in parts.items():
                found[kind] = found.get(kind, {}) | tensors
        return found

    def anew(self) -> Product:
        return replace(self, parts={group: part.anew() for group, part in self.parts.items()})

    def fault(self) -> str | None:
        return next((one for part in self.parts.values() if (one := part.fault())), None)


def _sum(values: Iterable[Tensor]) -> Tensor:
    first, *others = values
    return sum(others, first)


@dataclass(frozen=True)
class PerGroup(Family):
    """A family for each group of weights, by name or pattern; the first pattern that fits counts.

    A pattern may name several, `"head.weight|head.bias"`, which then share one belief.

    `PerGroup({"*.bias": MeanFieldFamily(), "*": BernoulliFamily()})` has binary weights with real
    biases; `PerGroup({"2.*": GaussianFamily(Dense()), "*": PointEstimate()})` is a belief over the
    last layer alone.
    """

    families: Mapping[str, Family]

    def __post_init__(self) -> None:
        for pattern, family in self.families.items():
            if not isinstance(family, Family):
                raise TypeError(
                    f"PerGroup takes a family for each pattern, got {family!r} for {pattern!r}; "
                    "for example MeanFieldFamily()."
                )
            if isinstance(family, RotatedFamily):
                raise TypeError(
                    "A belief that is kept in eigenbases is not part of a PerGroup(), got "
                    f"{family!r} for {pattern!r}; use GaussianFamily(Kronecker())."
                )
            if family.needs_additive:
                raise TypeError(
                    f"A belief that divides gradients among its parts is not part of a PerGroup(), "
                    f"got {family!r} for {pattern!r}; use it for all weights."
                )
        if not self.families:
            raise ValueError("PerGroup takes at least one pattern and its family.")

    def words(self) -> str:
        spread = [family.words() for family in self.families.values() if family.spreads]
        some = " (some weights)" if len(spread) < len(self.families) else ""
        return " and ".join(spread) + some

    def _all(self, ability: str) -> bool:
        return all(getattr(family, ability) for family in self.families.values())

    @property
    def has_mean(self) -> bool:  # type: ignore[override]
        """Whether gradient descent moves the means of all groups, and no spread or each of them.

        Groups whose spread it learns need slopes that groups with a fixed one have no use for.
        """
        learned = any(family.has_scales for family in self.families.values())
        return self._all("has_mean") and (self.has_scales or not learned)

    @property
    def has_scales(self) -> bool:  # type: ignore[override]
        """Whether gradient descent learns the spread of every group that has one."""
        spread = [family for family in self.families.values() if family.spreads]
        return bool(spread) and all(family.has_scales for family in spread)

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        return any(family.spreads for family in self.families.values())

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """Whether all weights are independent Gaussians."""
        return self._all("independent")

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether draws of all groups have mirror images."""
        return self._all("symmetric")

    @property
    def linearisable(self) -> bool:  # type: ignore[override]
        """Whether all groups are Gaussian."""
        return self._all("linearisable")

    @property
    def own_coordinates(self) -> bool:  # type: ignore[override]
        """Whether some weights are made from other tensors."""
        return any(family.own_coordinates for family in self.families.values())

    @property
    def needs_draws(self) -> bool:  # type: ignore[override]
        """Whether some group is to be looked at at draws."""
        return any(family.needs_draws for family in self.families.values())

    @property
    def needs_additive(self) -> bool:  # type: ignore[override]
        """Whether some gradient is divided among the parts of a belief."""
        return any(family.needs_additive for family in self.families.values())

    @property
    def takes_precision(self) -> bool:  # type: ignore[override]
        """Whether some group has a prior that is told by a precision."""
        return any(family.takes_precision for family in self.families.values())

    @property
    def structure(self) -> Structure | None:  # type: ignore[override]
        parts = {pattern: family.structure for pattern, family in self.families.items()}
        if any(part is None for part in parts.values()):
            return None
        return Blocks(parts)  # type: ignore[arg-type]

    def _first(self, obstacle: str) -> str | None:
        each = (getattr(family, obstacle) for family in self.families.values())
        return next((reason for reason in each if reason is not None), None)

    @property
    def stack_obstacle(self) -> str | None:
        return self._first("stack_obstacle")

    @property
    def replay_obstacle(self) -> str | None:
        return self._first("replay_obstacle")

    def for_model(self, model: nn.Module) -> PerGroup:
        parts = {pattern: family.for_model(model) for pattern, family in self.families.items()}
        return replace(self, families=parts)

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Product:
        groups, given = grouped(self.families, params), as_prior(prior)
        self._check_spread(groups)
        parts = {
            group: self.families[group].init(
                pick(params, names), weight=weight, prior=prior_of(given, group)
            )
            for group, names in groups.items()
        }
        return Product(parts, groups, tuple(params))

    def _check_spread(self, groups: dict[str, Names]) -> None:
        if self.spreads and not any(self.families[group].spreads for group in groups):
            raise ValueError(
                f"All weights fit {' or '.join(map(repr, groups))} and have no variance, so there "
                "is no belief to learn; leave some to a family such as MeanFieldFamily()."
            )

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        groups = grouped(self.families, coordinates)
        blocks = {
            group: self.families[group].first_curvature(pick(coordinates, names), weight)
            for group, names in groups.items()
        }
        return BlockMatrix(blocks, groups)

    def prior(self, given: object, params: Params) -> Prior:
        groups = grouped(self.families, params)
        _refuse_other_groups(given, groups)
        earlier = given.parts if isinstance(given, Product | ProductPrior) else {}
        parts = {
            group: self._prior(group, earlier.get(group, given), pick(params, names))
            for group, names in groups.items()
        }
        first = next(iter(parts.values()))
        # One prior for all is faster than the same for each.
        return (
            first if all(part == first for part in parts.values()) else ProductPrior(parts, groups)
        )

    def _prior(self, group: str, given: object, params: Params) -> Prior:
        """A precision is for those groups that have use for one."""
        family, number = self.families[group], isinstance(given, int | float)
        return family.prior(None if number and not family.takes_precision else given, params)


def _refuse_other_groups(given: object, groups: dict[str, Names]) -> None:
    """A TypeError for an earlier posterior that has no part for each of the groups."""
    whole = isinstance(given, Posterior) and not isinstance(given, Product)
    if isinstance(given, Prior) and given.earlier is not None:
        whole = True
    if whole or (isinstance(given, Product | ProductPrior) and given.groups != groups):
        raise TypeError(
            "The prior of a PerGroup() is GaussianPrior(precision) or an earlier posterior of the "
            f"same groups, {', '.join(map(repr, groups))}, got {given!r}."
        )
