"""Methods that follow the gradient of the evidence lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from torch import nn
from torch.optim import Adam, Optimizer

from bayesrule.curvature import Curvature, ExpectedLoss, Pathwise, Price, SecondOrder
from bayesrule.expectations import AtMean, Draws, Expectation, Layerwise, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._settings import Rate, Settings
from bayesrule.methods.smooth import warn_of_kinks
from bayesrule.posteriors import FanIn, KTiedFamily, MeanFieldFamily
from bayesrule.posteriors.factorised import SHARE
from bayesrule.posteriors.tied import Rank
from bayesrule.rules import Elbo


def estimate(expectation: Expectation | None) -> Curvature:
    """How the loss's derivatives are estimated under an expectation."""
    if isinstance(expectation, Layerwise):
        return Pathwise()
    return ExpectedLoss() if isinstance(expectation, Moments) else Price()


def mean_field(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 3e-3,
    scale_multiplier: float = 10.0,
    optimiser: Callable[..., Optimizer] = Adam,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    keep_gradients: bool = False,
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
        curvature=estimate(expectation),
        rule=Elbo(learning_rate, scale_multiplier, optimiser, kl_weight, clip, keep_gradients),
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
    optimiser: Callable[..., Optimizer] = Adam,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    keep_gradients: bool = False,
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
        curvature=estimate(expectation),
        rule=Elbo(learning_rate, scale_multiplier, optimiser, kl_weight, clip, keep_gradients),
        predictive=Draws(32),
        **settings,
    )


def variational_laplace(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 3e-3,
    scale_multiplier: float = 10.0,
    optimiser: Callable[..., Optimizer] = Adam,
    kl_weight: Rate = 1.0,
    clip: float = float("inf"),
    keep_gradients: bool = False,
    exact: bool = False,
    difference: float | None = None,
    share: float = 1.0,
    spread: float | FanIn = SHARE,
    known: tuple[str, ...] = (),
    **settings: Unpack[Settings],
) -> Learner:
    """Variational Laplace: the ELBO to second order at the mean, without draws of weights.

    Unlu & Aitchison (2021). Predictions are at the mean, which has been moved to where the loss is
    flat. `exact` enumerates the outputs instead of drawing targets, for small nets. Steps get
    cheaper with a `share` of the batch, such as 0.25, and on a GPU by a `difference`, such as 3e-4;
    see `SecondOrder`.
    """
    warn_of_kinks(model)
    return Learner(
        model,
        likelihood,
        posterior=MeanFieldFamily(spread, known),
        expectation=AtMean(),
        curvature=SecondOrder(exact, difference, share),
        rule=Elbo(learning_rate, scale_multiplier, optimiser, kl_weight, clip, keep_gradients),
        predictive=AtMean(),
        **settings,
    )
