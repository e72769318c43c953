"""Checks that the parts of a learner fit together; misfits are refused before the first step."""

from __future__ import annotations

import math
from typing import Any

from bayesrule.curvature import Curvature
from bayesrule.curvature.rows import refuse_embedding_bags, refuse_recurrent
from bayesrule.expectations import Expectation, Look
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Family, Posterior, Prior
from bayesrule.posteriors.prior import check_fits
from bayesrule.rules._base import Rule
from bayesrule.tensors import distributed
from bayesrule.tensors.network import Network
from bayesrule.types import Params


def instance(part: object, kind: type, name: str, example: str):  # type: ignore[no-untyped-def]
    """The part if it is an object of the right kind; anything else, or its class, is refused."""
    if isinstance(part, type) and issubclass(part, kind):
        raise TypeError(f"{name} takes an object, got the class: write {part.__name__}().")
    if not isinstance(part, kind):
        raise TypeError(f"{name} takes a {kind.__name__} such as {example}, got {part!r}.")
    return part


def positive(value: float, name: str) -> float:
    """The value if it is positive and finite; any other is refused."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive, got {value}.")
    return value


def checked_prior(family: Family, given: object, params: Params) -> Prior:
    """The family's prior from what the user gave; a posterior of other weights is refused."""
    if isinstance(given, Posterior):
        check_fits(given.mean, params)
    return family.prior(given, params)


def check_parts(
    network: Network,
    likelihood: Likelihood,
    family: Family,
    expectation: Expectation,
    curvature: Curvature,
    rule: Rule,
) -> None:
    """Refuses parts that do not fit, naming them and an alternative."""
    rule.check(family, expectation, curvature)
    _refuse(expectation.obstacle(family))
    _check_coordinates(family, curvature)
    if distributed.world_size() > 1 and family.structure is not None:
        _refuse(family.structure.rank_obstacle)
    _check_curvature(network, likelihood, curvature)


def check_pieces(
    pieces: int,
    network: Network,
    likelihood: Likelihood,
    family: Family,
    curvature: Curvature,
    rule: Rule,
) -> None:
    """Refuses a batch in pieces if their sums differ from those of the whole."""
    if not (isinstance(pieces, int) and pieces >= 1):
        raise ValueError(f"accumulate is a whole number of at least 1, got {pieces!r}.")
    if pieces == 1:
        return
    structure = rule.structure(family)
    why = curvature.piece_obstacle or structure.piece_obstacle or family.piece_obstacle
    if network.couples:
        why = "batch norm in training mode sees one piece at a time; put it into evaluation mode"
    elif likelihood.learns and not curvature.whole_data:
        why = f"{type(likelihood).__name__} counts the batches that its noise is learned from; give"
        why += " it a noise"
    if why is not None:
        raise ValueError(f"The pieces of a batch do not add up to it (accumulate={pieces}): {why}.")


def check_final(
    network: Network, likelihood: Likelihood, family: Family, curvature: Curvature
) -> None:
    """Refuses a final curvature that cannot be summed over the data at the mean."""
    kind = type(curvature).__name__
    sums = curvature.additive and curvature.gives_curvature and curvature.whole_data
    if curvature.needs_draws or not sums or curvature.diagonal_only:
        raise ValueError(
            "The final curvature is summed over the data at the mean: use GGN(), Fisher(), "
            f"PerExample() or Hessian(), got {kind}()."
        )
    moves = family.structure is not None and family.structure.moves
    if not moves or not family.spreads or family.needs_draws:
        raise TypeError(
            f"The final curvature becomes the precision of a Gaussian, got {family!r}; use "
            "GaussianFamily(structure)."
        )
    _check_curvature(network, likelihood, curvature)


def check_empirical(prior: Prior) -> None:
    """Refuses a prior whose precision the evidence cannot determine."""
    if not isinstance(prior.diagonal({}), float):
        raise ValueError(
            "empirical_prior=True looks for the precision of N(0, I/δ), but the prior is a "
            "posterior of earlier data; leave one of them out."
        )


def check_predictive(how: Any, family: Family, likelihood: Likelihood) -> None:
    """Refuses a way to predict that the family or the likelihood does not support."""
    if getattr(how, "random", True) or how.look is not Look.WEIGHTS:
        _refuse(how.obstacle(family))
    for ability in getattr(how, "asks", ()):
        _refuse(likelihood.lacks(ability))


def _refuse(obstacle: str | None) -> None:
    if obstacle is not None:
        raise TypeError(obstacle[0].upper() + obstacle[1:].rstrip(".") + ".")


def _check_coordinates(family: Family, curvature: Curvature) -> None:
    if family.own_coordinates and not curvature.takes_coordinates:
        raise ValueError(
            f"{type(curvature).__name__}() looks at the weights as they are, and "
            f"{type(family).__name__}() learns them in other coordinates: use GaussianFamily(), or "
            "NoCurvature(), Fisher() or GGN()."
        )
    if family.needs_additive and not curvature.additive:
        raise ValueError(
            f"{type(curvature).__name__}() squares the whole gradient, which "
            f"{type(family).__name__}() divides among its parts: use PerExample(), GGN() or "
            "Price()."
        )


def _check_curvature(network: Network, likelihood: Likelihood, curvature: Curvature) -> None:
    for ability in curvature.asks:
        _refuse(likelihood.lacks(ability))
    if curvature.needs_rows:
        refuse_recurrent(network, curvature)
    if curvature.twice:
        refuse_embedding_bags(network, curvature)
