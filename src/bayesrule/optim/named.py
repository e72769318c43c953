"""The named optimisers: each is one choice of parts, as in `bayesrule.methods`."""

from __future__ import annotations

import math
from typing import Required, TypedDict, Unpack

from torch.optim.optimizer import ParamsT

from bayesrule.curvature import Curvature, NoCurvature, Price, SquaredGradient
from bayesrule.expectations import AtMean, Draws
from bayesrule.matrices import Diagonal
from bayesrule.optim.base import BayesianOptimizer
from bayesrule.posteriors import GaussianFamily
from bayesrule.rules import Average, HeavyBall, Natural
from bayesrule.schedules import Schedule

Rate = float | Schedule


class Settings(TypedDict, total=False):
    """Options of every optimiser; see `BayesianOptimizer`."""

    seed: int
    num_data: Required[int]
    prior_precision: float
    temperature: float


class _AtMean(BayesianOptimizer):
    """An optimiser that evaluates the loss at the mean, by default without a prior."""

    def __init__(
        self, params: ParamsT, curvature: Curvature, rule: Natural, settings: Settings
    ) -> None:
        super().__init__(
            params,
            posterior=GaussianFamily(Diagonal()),
            expectation=AtMean(),
            curvature=curvature,
            rule=rule,
            **{"prior_precision": 0.0, **settings},  # type: ignore[arg-type]
        )


class SGD(_AtMean):
    """Gradient descent with heavy-ball momentum: a Gaussian of fixed covariance, about I/N."""

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 3e-3,
        momentum: float = 0.9,
        **settings: Unpack[Settings],
    ) -> None:
        rule = Natural(lr, momentum=HeavyBall(momentum), fixed_precision=True)
        super().__init__(params, NoCurvature(), rule, settings)


class RMSprop(_AtMean):
    """RMSprop: a diagonal Gaussian, preconditioned by the root of squared gradients."""

    def __init__(
        self, params: ParamsT, *, lr: float = 1e-3, rate: Rate = 0.01, **settings: Unpack[Settings]
    ) -> None:
        rule = Natural(lr, rate, square_root=True, from_zero=True)
        super().__init__(params, SquaredGradient(), rule, settings)


class Adam(_AtMean):
    """Adam: RMSprop with averaged gradients; both averages are bias-corrected.

    Kingma & Ba (2015).
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 1e-3,
        rate: Rate = 1e-3,
        momentum: float = 0.9,
        **settings: Unpack[Settings],
    ) -> None:
        rule = Natural(lr, rate, Average(momentum), square_root=True, debias=True)
        super().__init__(params, SquaredGradient(), rule, settings)


class IVON(BayesianOptimizer):
    """Improved variational online Newton: Price's curvature at draws, kept positive by retraction.

    Shen et al. (2024). `draws` is the number of times `step(closure)` calls its closure; in a loop
    without closures, each block is a draw.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 0.2,
        rate: Rate = 1e-3,
        momentum: float = 0.9,
        clip: float = math.inf,
        initial_curvature: float = 2.0,
        draws: int = 1,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            params,
            posterior=GaussianFamily(Diagonal(), initial_curvature),
            expectation=Draws(draws),
            curvature=Price(),
            rule=Natural(lr, rate, Average(momentum), retract=True, clip=clip),
            **settings,
        )
