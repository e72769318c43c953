"""Noisy natural gradients: optimisers whose weight noise is the belief."""

from __future__ import annotations

import math
from typing import Unpack

from torch import nn

from bayesrule.curvature import Curvature, Fisher, SquaredGradient
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import BlockTridiagonal, Dense, Diagonal, Kronecker
from bayesrule.methods._settings import Rate, Settings
from bayesrule.posteriors import GaussianFamily, RotatedFamily
from bayesrule.rules import Average, Noisy, Velocity

Momentum = float | Average | Velocity | None


def noisy_adam(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.03,
    momentum: Momentum = 0.9,
    rate: Rate = 1e-3,
    initial_curvature: float = 1.0,
    draws: int = 1,
    damped_root: bool = False,
    curvature: Curvature | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Noisy Adam: a diagonal Gaussian whose precision is the average of Adam's squared gradients.

    Zhang et al. (2018), algorithm 1. The mean's gradient is divided by `√f + γ`, or by `√(f + γ)`
    with `damped_root`, γ the prior precision per datum; only the momentum is without bias. Squares
    are those of the sum over a batch, per example, so that the belief does not depend on the size
    of batches; `curvature=SquaredGradient()` takes those of the mean, which Adam has.
    """
    steps = _average(momentum)
    rule = Noisy(learning_rate, rate, steps, square_root=True, damped_root=damped_root)
    family = GaussianFamily(Diagonal(), initial_curvature)
    squares = curvature or SquaredGradient(of_sums=True)
    return _learner(model, likelihood, family, rule, squares, draws, settings)


def noisy_kfac(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.05,
    momentum: Momentum = 0.9,
    rate: Rate = 0.05,
    initial_curvature: float = 1.0,
    draws: int = 1,
    damping: float = 0.0,
    kl_clip: float = 1e-3,
    stats_every: int = 10,
    inverse_every: int = 100,
    widest: int = 8192,
    curvature: Curvature | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Noisy K-FAC: a matrix Gaussian for each layer, from its inputs and its output gradients.

    Zhang et al. (2018), algorithm 2, with the Fisher information of targets drawn from the model.
    For small nets `stats_every=1, inverse_every=1` costs little and learns faster. Layers with more
    than `widest` inputs or outputs have diagonal blocks.
    """
    clips, every = (damping, kl_clip), (stats_every, inverse_every)
    rule = _rule(learning_rate, rate, momentum, clips, every)
    found = curvature or Fisher()
    structure = Kronecker(widest=widest)
    family = _kronecker(model, structure, initial_curvature, inverse_every, found)
    return _learner(model, likelihood, family, rule, found, draws, settings)


def noisy_ekfac(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.05,
    momentum: Momentum = 0.9,
    rate: Rate = 0.05,
    initial_curvature: float = 1.0,
    draws: int = 1,
    damping: float = 0.0,
    kl_clip: float = 1e-3,
    stats_every: int = 10,
    inverse_every: int = 100,
    widest: int = 8192,
    curvature: Curvature | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Noisy EK-FAC: noisy K-FAC with the curvature's own diagonal in the factors' eigenbases."""
    clips, every = (damping, kl_clip), (stats_every, inverse_every)
    rule = _rule(learning_rate, rate, momentum, clips, every)
    found = curvature or Fisher()
    structure = Kronecker(corrected=True, widest=widest)
    family = _kronecker(model, structure, initial_curvature, inverse_every, found)
    return _learner(model, likelihood, family, rule, found, draws, settings)


def noisy_tridiagonal(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.05,
    momentum: Momentum = 0.9,
    rate: Rate = 0.05,
    initial_curvature: float = 1.0,
    draws: int = 1,
    damping: float = 0.0,
    kl_clip: float = 1e-3,
    stats_every: int = 10,
    inverse_every: int = 100,
    widest: int = 8192,
    curvature: Curvature | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Noisy K-FAC for chains of layers, with the weights of neighbouring layers correlated."""
    clips, every = (damping, kl_clip), (stats_every, inverse_every)
    rule = _rule(learning_rate, rate, momentum, clips, every)
    family = GaussianFamily(BlockTridiagonal(widest), initial_curvature)
    return _learner(model, likelihood, family, rule, curvature or Fisher(), draws, settings)


def noisy_full(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 0.05,
    momentum: Momentum = 0.9,
    rate: Rate = 0.05,
    initial_curvature: float = 1.0,
    draws: int = 1,
    damping: float = 0.0,
    kl_clip: float = math.inf,
    stats_every: int = 1,
    inverse_every: int = 1,
    limit: int = 20_000,
    curvature: Curvature | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Noisy natural gradient with a full covariance, for nets of some thousand weights.

    More than `limit` of them are refused: the matrix has a row and a column for each.
    """
    clips, every = (damping, kl_clip), (stats_every, inverse_every)
    rule = _rule(learning_rate, rate, momentum, clips, every)
    family = GaussianFamily(Dense(limit), initial_curvature)
    return _learner(model, likelihood, family, rule, curvature or Fisher(), draws, settings)


def _kronecker(
    model: nn.Module, structure: Kronecker, first: float, inverse_every: int, curvature: Curvature
) -> GaussianFamily:
    """In the factors' eigenbases, where these are kept for a while and the curvature allows it.

    A GPU multiplies by whole roots in no time, and eigenvectors of wide factors take it seconds.
    """
    wide = any(value.is_cuda for value in model.parameters()) and not structure.corrected
    kept = inverse_every > 1 and curvature.takes_coordinates and not wide
    return RotatedFamily(structure, first) if kept else GaussianFamily(structure, first)


def _average(momentum: Momentum) -> Average | Velocity | None:
    """A number is the decay of an average."""
    return momentum if isinstance(momentum, Average | Velocity | None) else Average(momentum)


def _rule(
    learning_rate: Rate,
    rate: Rate,
    momentum: Momentum,
    clips: tuple[float, float],
    every: tuple[int, int],
) -> Noisy:
    return Noisy(
        learning_rate,
        rate,
        _average(momentum),
        damping=clips[0],
        kl_clip=clips[1],
        stats_every=every[0],
        inverse_every=every[1],
    )


def _learner(
    model: nn.Module,
    likelihood: Likelihood,
    family: GaussianFamily,
    rule: Noisy,
    curvature: Curvature,
    draws: int,
    settings: Settings,
) -> Learner:
    return Learner(
        model,
        likelihood,
        posterior=family,
        expectation=Draws(draws),
        curvature=curvature,
        rule=rule,
        predictive=Draws(32),
        **settings,
    )
