"""Methods of the natural gradient: second-order information, averaged or all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from torch import nn

from bayesrule.curvature import GGN, Hessian, PerExample, Price
from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Dense, Diagonal
from bayesrule.methods._options import Rate, Settings
from bayesrule.methods._record import (
    AT_DRAWS,
    AT_MEAN,
    DIAGONAL,
    SQUARES_OF_EXAMPLES,
    Course,
    Need,
    method,
)
from bayesrule.posteriors import GaussianFamily
from bayesrule.predicting.predict import Linearised
from bayesrule.rules import Average, Natural

FULL = "full covariance (`Dense`)"
AVERAGED = "natural gradient with momentum; the curvature is averaged over steps"
# Each step sees all data, so the noise needs no averaging over batches.
ALL_AT_ONCE = Course(30, 30, whole=True, noise={"averaging": 1.0})


def half_steps(num_data: int, num_steps: int) -> Mapping[str, Any]:
    """Full Newton steps can overshoot on classes; half steps do not and end as well."""
    return {"learning_rate": 0.5}


@method(
    belief=FULL,
    expectation=AT_MEAN,
    curvature="exact Hessian (`Hessian`)",
    rule="natural gradient in full steps, ρ = 1",
    source="Khan & Rue (2023), sec. 1.3.2, eqs 8 and 12",
    needs=(Need.LINEAR_MODEL,),
    limits="a Hessian that is not positive definite is refused, so the loss has to be convex",
    course=ALL_AT_ONCE,
    training_options=half_steps,
)
def newton(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1.0,
    rate: Rate = 1.0,
    **settings: Unpack[Settings],
) -> Learner:
    """Newton's method: a full Gaussian at its mean with the exact Hessian, for convex problems."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Dense()),
        expectation=AtMean(),
        curvature=Hessian(),
        rule=Natural(learning_rate, rate),
        predictive=Linearised(),
        **settings,
    )


@method(
    belief=FULL,
    expectation=AT_MEAN,
    curvature="generalised Gauss-Newton matrix (`GGN`)",
    rule="natural gradient in full steps, ρ = 1: one step on all data is the exact posterior",
    source="Khan & Rue (2023), sec. 1.3.3, eq. 14",
    needs=(Need.LINEAR_MODEL, Need.REAL_TARGETS, Need.SINGLE_EXAMPLES),
    limits="for classes, newton is its counterpart",
    course=ALL_AT_ONCE,
)
def ridge(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1.0,
    rate: Rate = 1.0,
    **settings: Unpack[Settings],
) -> Learner:
    """Ridge regression: for a linear model, one step on all data is the exact posterior."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Dense()),
        expectation=AtMean(),
        curvature=GGN(),
        rule=Natural(learning_rate, rate),
        predictive=Linearised(),
        **settings,
    )


@method(
    belief=DIAGONAL,
    expectation=AT_MEAN,
    curvature=SQUARES_OF_EXAMPLES,
    rule=AVERAGED,
    source="Khan & Rue (2023), sec. 4.4, eqs 44 and 45",
    needs=(Need.SINGLE_EXAMPLES,),
)
def ogn(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.2,
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    initial_curvature: float = 2.0,
    **settings: Unpack[Settings],
) -> Learner:
    """Online Gauss-Newton: a diagonal Gaussian at its mean, squares of single examples."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal(), initial_curvature),
        expectation=AtMean(),
        curvature=PerExample(),
        rule=Natural(learning_rate, rate, Average(momentum)),
        predictive=Linearised(),
        **settings,
    )


@method(
    belief=DIAGONAL,
    expectation=AT_DRAWS,
    curvature=SQUARES_OF_EXAMPLES,
    rule=AVERAGED,
    source="Khan & Rue (2023), sec. 4.4, eqs 45 and 46",
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
)
def vogn(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.2,
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    initial_curvature: float = 2.0,
    draws: int = 1,
    **settings: Unpack[Settings],
) -> Learner:
    """Variational online Gauss-Newton: OGN with the loss looked at at weight draws."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal(), initial_curvature),
        expectation=Draws(draws),
        curvature=PerExample(),
        rule=Natural(learning_rate, rate, Average(momentum)),
        predictive=Draws(32),
        **settings,
    )


@method(
    belief=DIAGONAL,
    expectation=AT_DRAWS,
    curvature="gradient times offset of the draw, by Price's theorem (`Price`)",
    rule="natural gradient with momentum; the averaged curvature is retracted, so that the "
    "precision stays positive",
    source="Shen et al. (2024), algorithm 1; Khan & Rue (2023), eq. 11 (Price); Lin, Schmidt & "
    "Khan (2020), eq. 17 (retraction)",
    needs=(Need.DRAWS,),
    explained={"clip": "largest entry of the preconditioned gradient"},
)
def ivon(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.2,
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    initial_curvature: float = 2.0,
    draws: int = 1,
    clip: float = float("inf"),
    **settings: Unpack[Settings],
) -> Learner:
    """Improved variational online Newton: Price's curvature, kept positive by retraction."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal(), initial_curvature),
        expectation=Draws(draws),
        curvature=Price(),
        rule=Natural(learning_rate, rate, Average(momentum), retract=True, clip=clip),
        predictive=Draws(32),
        **settings,
    )
