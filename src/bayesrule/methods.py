"""The named methods: each is one assignment of parts, as in Table 1 of Khan & Rue (2023).

Every method takes `(model, likelihood, *, num_data, ...)`: its own options and those of `Settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Required, TypedDict, Unpack

from torch import nn

from bayesrule.curvature import (
    GGN,
    Curvature,
    Hessian,
    Innovations,
    NoCurvature,
    PerExample,
    Price,
    SecondOrder,
    SquaredGradient,
)
from bayesrule.expectations import AtMean, Draws, Expectation, Moments
from bayesrule.kinks import warn_of_kinks
from bayesrule.last_layer import laplace_structure
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Dense, Diagonal, Isotropic, Structure
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import FanIn, GaussianFamily, KTiedFamily, MeanFieldFamily, Rank
from bayesrule.posteriors.factorised import SHARE
from bayesrule.predict import Linearised
from bayesrule.rules import Average, Conditioning, Elbo, HeavyBall, Natural
from bayesrule.schedules import Schedule

Rate = float | Schedule


class Settings(TypedDict, total=False):
    """Options that every method has; `Learner` says what they mean."""

    num_data: Required[int]
    prior_precision: float
    temperature: float
    shared_draws: bool


def sgd(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 3e-3,
    momentum: float = 0.9,
    **settings: Unpack[Settings],
) -> Learner:
    """Gradient descent: a Gaussian with fixed covariance, about I/N, looked at at its mean."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Isotropic()),
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=Natural(learning_rate, momentum=HeavyBall(momentum), fixed_precision=True),
        **_without_prior(settings),
    )


def rmsprop(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1e-3,
    rate: Rate = 0.01,
    **settings: Unpack[Settings],
) -> Learner:
    """RMSprop: a diagonal Gaussian at its mean, preconditioned by the root of squared gradients."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal()),
        expectation=AtMean(),
        curvature=SquaredGradient(),
        rule=Natural(learning_rate, rate, square_root=True),
        **_without_prior(settings),
    )


def adam(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1e-3,
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    **settings: Unpack[Settings],
) -> Learner:
    """Adam: RMSprop with averaged gradients, both averages without bias."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal()),
        expectation=AtMean(),
        curvature=SquaredGradient(),
        rule=Natural(learning_rate, rate, Average(momentum), square_root=True, debias=True),
        **_without_prior(settings),
    )


def map(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 3e-3,
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    **settings: Unpack[Settings],
) -> Learner:
    """The most probable weights, found by Adam's steps; the covariance stays fixed."""
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Isotropic()),
        expectation=AtMean(),
        curvature=SquaredGradient(),
        rule=_adam_steps(learning_rate, momentum, rate),
        **settings,
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
        curvature=final if online else SquaredGradient(),
        rule=Natural(learning_rate, 0.01) if online else _adam_steps(learning_rate, 0.9, 1e-3),
        final_curvature=None if online else final,
        empirical_prior=empirical_prior,
        predictive=Linearised(),
        **settings,
    )


def tagi(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    gain: float | FanIn = 1.0,
    activations: Activations | None = None,
    rule: Conditioning | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Tractable approximate Gaussian inference: closed form, no gradients, no learning rate.

    The first belief has the module's own weights as means and `gain / √fan_in` as standard
    deviations; Goulet, Nguyen & Amiri (2021).
    """
    moments = Moments(activations or MomentMatched())
    spread = gain if isinstance(gain, FanIn) else FanIn(gain, gain, gain)
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(spread=spread),
        expectation=moments,
        curvature=Innovations(),
        rule=rule or Conditioning(),
        predictive=moments,
        **settings,
    )


def mean_field(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1e-3,
    scale_multiplier: float = 10.0,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    expectation: Expectation | None = None,
    spread: float | FanIn = SHARE,
    known: tuple[str, ...] = (),
    **settings: Unpack[Settings],
) -> Learner:
    """Mean-field variational inference: independent Gaussians by the ELBO's gradient at draws.

    Blundell et al. (2015); `expectation` may also be `LocalDraws()` or `Flipout()`, which have less
    noise, or `Moments()`, which has none.
    """
    return Learner(
        model,
        likelihood,
        posterior=MeanFieldFamily(spread, known),
        expectation=expectation or Draws(1),
        curvature=Price(),
        rule=Elbo(learning_rate, scale_multiplier, kl_weight=kl_weight, clip=clip),
        predictive=Draws(32),
        **settings,
    )


def k_tied(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    rank: Rank = 2,
    learning_rate: Rate = 3e-3,
    scale_multiplier: float = 10.0,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    expectation: Expectation | None = None,
    spread: float | FanIn = SHARE,
    known: tuple[str, ...] = (),
    **settings: Unpack[Settings],
) -> Learner:
    """The k-tied Normal: mean-field whose standard deviations are a matrix of low rank, `U Vᵀ`.

    Swiatkowski et al. (2020). About half the parameters, and gradients with less noise; `rank` may
    differ by name, such as `{"conv*": None, "*": 2}`, where None ties nothing.
    """
    return Learner(
        model,
        likelihood,
        posterior=KTiedFamily(rank, spread, known),
        expectation=expectation or Draws(1),
        curvature=Price(),
        rule=Elbo(learning_rate, scale_multiplier, kl_weight=kl_weight, clip=clip),
        predictive=Draws(32),
        **settings,
    )


def variational_laplace(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1e-3,
    scale_multiplier: float = 10.0,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    exact: bool = False,
    difference: float | None = None,
    spread: float | FanIn = SHARE,
    known: tuple[str, ...] = (),
    **settings: Unpack[Settings],
) -> Learner:
    """Variational Laplace: the ELBO to second order at the mean, without draws of weights.

    Unlu & Aitchison (2021). Predictions are at the mean, which has been moved to where the loss is
    flat. `exact` enumerates the outputs instead of drawing targets, for small nets; `difference`,
    such as 1e-3, is faster on a GPU (see `SecondOrder`).
    """
    warn_of_kinks(model)
    return Learner(
        model,
        likelihood,
        posterior=MeanFieldFamily(spread, known),
        expectation=AtMean(),
        curvature=SecondOrder(exact, difference),
        rule=Elbo(learning_rate, scale_multiplier, kl_weight=kl_weight, clip=clip),
        predictive=AtMean(),
        **settings,
    )


METHODS: dict[str, Callable[..., Learner]] = {
    function.__name__: function
    for function in (
        *(sgd, rmsprop, adam, map, newton, ridge, ogn, vogn, ivon, laplace, tagi),
        *(mean_field, k_tied, variational_laplace),
    )
}
"""Every named method."""


def find(name: str) -> Callable[..., Learner]:
    """The method of a name; hyphens and underscores are the same.

    >>> find("VOGN").__name__
    'vogn'
    """
    key = name.strip().lower().replace("-", "_")
    if key not in METHODS:
        near = get_close_matches(key, METHODS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"Unknown method {name!r}.{hint} Methods: {', '.join(METHODS)}.")
    return METHODS[key]


def _adam_steps(learning_rate: Rate, momentum: float, rate: Rate) -> Natural:
    """Adam's steps of the mean; the belief's covariance does not move."""
    average = Average(momentum)
    return Natural(
        learning_rate, rate, average, square_root=True, debias=True, fixed_precision=True
    )


def _without_prior(settings: Any) -> Any:
    """Plain optimisers have no prior unless they are given one."""
    return {"prior_precision": 0.0, **settings}
