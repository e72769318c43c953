"""Products of families: groups of weights by name or pattern, each with a belief of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from bayesrule.matrices import BlockMatrix, Blocks, Matrix, Structure
from bayesrule.matrices.blocks import grouped, pick
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.prior import Prior, as_prior
from bayesrule.posteriors.product import Names, Product
from bayesrule.posteriors.product_prior import ProductPrior, prior_of
from bayesrule.posteriors.rotated import RotatedFamily
from bayesrule.tensors.abilities import every, some
from bayesrule.types import Params


@dataclass(frozen=True)
class PerGroup(Family):
    """A family for each group of weights, by name or pattern; the first pattern that fits counts.

    A pattern may name several, `"head.weight|head.bias"`, which then share one belief.

    `PerGroup({"*.bias": MeanFieldFamily(), "*": BernoulliFamily()})` has binary weights with real
    biases; `PerGroup({"2.*": GaussianFamily(Dense()), "*": PointEstimate()})` is a belief over the
    last layer alone.
    """

    families: Mapping[str, Family]

    independent = every("families", "independent")
    symmetric = every("families", "symmetric")
    linearisable = every("families", "linearisable")
    own_coordinates = some("families", "own_coordinates")
    needs_draws = some("families", "needs_draws")
    needs_additive = some("families", "needs_additive")
    takes_precision = some("families", "takes_precision")

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

    @property
    def has_mean(self) -> bool:  # type: ignore[override]
        """Whether gradient descent moves the means of all groups, and no spread or each of them.

        Groups whose spread it learns need slopes that groups with a fixed one have no use for.
        """
        learned = any(family.has_scales for family in self.families.values())
        each = all(family.has_mean for family in self.families.values())
        return each and (self.has_scales or not learned)

    @property
    def has_scales(self) -> bool:  # type: ignore[override]
        """Whether gradient descent learns the spread of every group that has one."""
        spread = [family for family in self.families.values() if family.spreads]
        return bool(spread) and all(family.has_scales for family in spread)

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        return any(family.spreads for family in self.families.values())

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
