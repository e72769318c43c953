"""Products of families: each group of weights, by name or pattern, has its own posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from bayesrule.matrices import BlockMatrix, Blocks, Matrix, Structure
from bayesrule.matrices.blocks import Names, grouped, pick
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.prior import Prior, as_prior
from bayesrule.posteriors.product import Product, ProductPrior, prior_of
from bayesrule.tensors.abilities import derived, every, first, some
from bayesrule.types import Params


@dataclass(frozen=True)
class PerGroup(Family):
    """A family for each group of weights, by name, pattern or layer; the first match counts.

    A pattern may have alternatives, `"head.weight|head.bias"`, which then share one posterior. A
    class of layers, such as `nn.BatchNorm1d`, stands for all weights within layers of that class.

    `PerGroup({"*.bias": MeanFieldFamily(), "*": BernoulliFamily()})` has binary weights with real
    biases; `PerGroup({"2.*": GaussianFamily(Dense()), "*": PointEstimate()})` is a posterior over
    the last layer alone.
    """

    families: Mapping[Any, Family]
    """By pattern or class of layers; `for_model` turns classes into patterns."""

    independent = every("families", "independent")
    symmetric = every("families", "symmetric")
    linearisable = every("families", "linearisable")
    own_coordinates = some("families", "own_coordinates")
    needs_draws = some("families", "needs_draws")
    takes_precision = some("families", "takes_precision")
    spreads = some("families", "spreads")
    drops = some("families", "drops")
    looks_first = some("families", "looks_first")
    stack_obstacle = first("families", "stack_obstacle")
    replay_obstacle = first("families", "replay_obstacle")

    def __post_init__(self) -> None:
        for pattern, family in self.families.items():
            if not isinstance(family, Family):
                raise TypeError(
                    f"PerGroup takes a family for each pattern, got {family!r} for {pattern!r}; "
                    "for example MeanFieldFamily()."
                )
            if family.group_obstacle is not None:
                raise TypeError(
                    f"{type(family).__name__}() is not part of a PerGroup(), got {family!r} for "
                    f"{pattern!r}: {family.group_obstacle}."
                )
            if not (isinstance(pattern, str) or _is_layer(pattern)):
                raise TypeError(
                    "PerGroup takes a pattern of names such as '*.bias', or a class of layers such "
                    f"as nn.BatchNorm1d, for each family, got {pattern!r}."
                )
        if not self.families:
            raise ValueError("PerGroup takes at least one pattern and its family.")

    def words(self) -> str:
        spread = [family.words() for family in self.families.values() if family.spreads]
        suffix = " (some weights)" if len(spread) < len(self.families) else ""
        return " and ".join(spread) + suffix

    @derived
    def has_mean(self) -> bool:
        """Whether gradient descent moves all means, and the spreads of all groups or of none.

        A group whose spread it learns needs slopes that a group with a fixed spread cannot use.
        """
        scales = any(family.has_scales for family in self.families.values())
        means = all(family.has_mean for family in self.families.values())
        return means and (self.has_scales or not scales)

    @derived
    def has_scales(self) -> bool:
        """Whether gradient descent learns the spread of every group that has one."""
        spread = [family for family in self.families.values() if family.spreads]
        return bool(spread) and all(family.has_scales for family in spread)

    @derived
    def structure(self) -> Structure | None:
        structures = {pattern: family.structure for pattern, family in self.families.items()}
        parts = {pattern: part for pattern, part in structures.items() if part is not None}
        return Blocks(parts) if len(parts) == len(structures) else None

    def for_model(self, model: nn.Module) -> PerGroup:
        parts = {_pattern(k, model): family.for_model(model) for k, family in self.families.items()}
        return replace(self, families=parts)

    def counted(self, params: Params) -> int:
        groups = grouped(self.families, params)
        return sum(self.families[k].counted(pick(params, names)) for k, names in groups.items())

    def looked(self, curvature: float) -> PerGroup:
        parts = {pattern: family.looked(curvature) for pattern, family in self.families.items()}
        return replace(self, families=parts)

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Product:
        groups, prior = grouped(self.families, params), as_prior(prior)
        self._check_spread(groups)
        parts = {
            group: self.families[group].init(
                pick(params, names), weight=weight, prior=prior_of(prior, group)
            )
            for group, names in groups.items()
        }
        return Product(parts, groups, tuple(params))

    def _check_spread(self, groups: dict[str, Names]) -> None:
        if self.spreads and not any(self.families[group].spreads for group in groups):
            raise ValueError(
                f"All weights fit {' or '.join(map(repr, groups))} and have no variance, so there "
                "is no posterior to learn; leave some to a family such as MeanFieldFamily()."
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
        earlier: Mapping[str, object] = {}
        whole = isinstance(given, Posterior) or (
            isinstance(given, Prior) and given.earlier is not None
        )
        if isinstance(given, Product | ProductPrior):
            earlier, whole = given.parts, given.groups != groups
        if whole:
            raise TypeError(
                "The prior of a PerGroup() is GaussianPrior(precision) or an earlier posterior of "
                f"the same groups, {', '.join(map(repr, groups))}, got {given!r}."
            )
        parts = {
            group: self._prior(group, earlier.get(group, given), pick(params, names))
            for group, names in groups.items()
        }
        first_part, *others = parts.values()
        # One prior for all weights is faster than equal priors for each group.
        shared = all(part == first_part for part in others)
        return first_part if shared else ProductPrior(parts, groups)

    def _prior(self, group: str, given: object, params: Params) -> Prior:
        """The prior of one group; a precision is ignored if the group's family takes none."""
        family, number = self.families[group], isinstance(given, int | float)
        return family.prior(None if number and not family.takes_precision else given, params)


def _is_layer(key: object) -> bool:
    return isinstance(key, type) and issubclass(key, nn.Module)


def _pattern(key: Any, model: nn.Module) -> str:
    """The pattern of all weights within layers of a class; a pattern stays as it is."""
    if isinstance(key, str):
        return key
    layers = [name for name, layer in model.named_modules() if isinstance(layer, key)]
    names = [
        name
        for name, _ in model.named_parameters()
        if any(layer == "" or name.startswith(f"{layer}.") for layer in layers)
    ]
    if not names:
        kinds = sorted({type(layer).__name__ for layer in model.modules()})
        raise ValueError(
            f"No weights are within layers of the class {key.__name__}. There are: "
            f"{', '.join(kinds)}."
        )
    return "|".join(names)
