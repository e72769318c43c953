"""Methods that look for the best weights: plain optimisers and MAP."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from bayesrule.curvature import NoCurvature, SquaredGradient
from bayesrule.expectations import AtMean
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Diagonal, Isotropic
from bayesrule.methods._settings import Rate, Settings, adam_steps, without_prior
from bayesrule.posteriors import GaussianFamily
from bayesrule.rules import Average, HeavyBall, Natural


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
        **without_prior(settings),
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
        **without_prior(settings),
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
        **without_prior(settings),
    )


def map(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 3e-3,
    momentum: float = 0.9,
    rate: float = 1e-3,
    **settings: Unpack[Settings],
) -> Learner:
    """The most probable weights, found by Adam: the ELBO's gradient of a belief without variance.

    It is `torch.optim.Adam(betas=(momentum, 1 - rate))` on the mean loss and the prior's
    `δ/(2N) ‖m‖²`; the covariance, about I/N, stays fixed.
    """
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Isotropic()),
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=adam_steps(learning_rate, momentum, rate),
        **settings,
    )
