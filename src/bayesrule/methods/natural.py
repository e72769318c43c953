"""Methods of the natural gradient: second-order information, averaged or all at once."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from bayesrule.curvature import GGN, Curvature, Hessian, NoCurvature, PerExample, Price
from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Dense, Diagonal, Structure
from bayesrule.methods._settings import Rate, Settings, adam_steps
from bayesrule.methods.last_layer import laplace_structure
from bayesrule.posteriors import GaussianFamily
from bayesrule.predicting.predict import Linearised
from bayesrule.rules import Average, Natural


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


def laplace(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    structure: Structure | None = None,
    curvature: Curvature | None = None,
    last_layer: bool | None = None,
    empirical_prior: bool | None = None,
    online: bool = False,
    learning_rate: Rate = 3e-3,
    **settings: Unpack[Settings],
) -> Learner:
    """Laplace: the curvature at the most probable weights, after training or averaged on the way.

    Without a structure, the last layer has a full covariance and the others are held as known;
    online it is a diagonal over all weights. With neither a structure nor a `prior_precision`, the
    belief's prior precision is that of largest evidence (`empirical_prior`).
    """
    final = curvature or GGN()
    if empirical_prior is None:
        empirical_prior = structure is None and "prior_precision" not in settings
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(laplace_structure(model, structure, last_layer, online)),
        expectation=AtMean(),
        curvature=final if online else NoCurvature(),
        rule=Natural(learning_rate, 0.01) if online else adam_steps(learning_rate),
        final_curvature=None if online else final,
        empirical_prior=empirical_prior,
        predictive=Linearised(),
        **settings,
    )
