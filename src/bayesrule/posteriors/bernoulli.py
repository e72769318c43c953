"""Binary weights: each is +1 or −1 with its own probability."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesrule.matrices import Matrix
from bayesrule.matrices.blocks import Unit, UnitMatrix
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import Prior, check_fits
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Local, Number, Params

# In single precision draws saturate; without this their gradients would be exactly zero.
_LEAST = 1e-10


@dataclass(frozen=True)
class BernoulliPrior(Prior):
    """Independent binary weights with natural parameters `logits`; 0 is ±1 with equal chances.

    `strength` multiplies the pull of the prior and of the posterior's entropy; 0 turns both off.
    """

    logits: Params | float = 0.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.logits, int | float) and not math.isfinite(self.logits):
            raise ValueError(f"BernoulliPrior: logits must be finite, got {self.logits}.")

    def logits_of(self, like: Params) -> Params:
        """The natural parameter of each weight."""
        if isinstance(self.logits, dict):
            return {name: self.logits[name] for name in like}
        return {name: torch.full_like(value, self.logits) for name, value in like.items()}

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        if self.strength == 0.0:
            return gradient
        vectors.add_(gradient, self.logits_of(gradient), alpha=-factor * self.strength)
        return vectors.add_(gradient, at, alpha=factor * self.strength)

    def added_to(self, curvature: Matrix) -> Matrix:
        return curvature

    def diagonal(self, like: Params) -> float:
        return 1.0

    def log_prob(self, params: Params) -> Tensor:
        return vectors.dot(self.logits_of(params), params)

    def describe(self) -> Any:
        return float(vectors.total(self.logits) if isinstance(self.logits, dict) else self.logits)


@dataclass(frozen=True)
class RelaxedDraw(Point):
    """`θ = tanh((λ + ½ logit u) / T)`, u uniform: a smooth draw near ±1 (the concrete relaxation).

    Khan & Rue (2023), eqs 50 and 51. Its gradient turns into one in the mean `μ = tanh λ` by
    `dθ/dμ = (1 − θ²) / (T (1 − μ²))`.
    """

    logits: Params
    temperature: float

    pulls = True

    def pulled(self, local: Local, pull: Pull) -> Local:
        gradient = {}
        for name, slope in local.gradient.items():
            of_draw, of_mean = (
                1.0 - v.square() for v in (self.coordinates[name], self.logits[name].tanh())
            )
            gradient[name] = slope * (of_draw + _LEAST) / (self.temperature * (of_mean + _LEAST))
        return replace(local, gradient=gradient)

    @property
    def position(self) -> Params:
        """The natural parameters, at which the prior's pull is taken."""
        return self.logits

    def price(self, gradient: Params) -> Matrix:
        return UnitMatrix()


@dataclass(frozen=True)
class SignPoint(Point):
    """The signs of natural parameters, where a gradient counts as one in the mean.

    That is the limit of `RelaxedDraw` without noise and with `dθ/dμ = 1`, the straight-through
    estimator; Khan & Rue (2023), eq. 48.
    """

    logits: Params

    @property
    def position(self) -> Params:
        """The natural parameters, at which the prior's pull is taken."""
        return self.logits


@dataclass(frozen=True, repr=False)
class Bernoulli(Posterior):
    """`q(θ) = Π exp(λθ) / (2 cosh λ)` over θ = ±1, λ the `logits`: half the log-odds.

    If it is `bounded`, no λ moves beyond ±1.

    >>> q = Bernoulli({"w": torch.tensor([0.0, 20.0])})
    >>> q.mean["w"], q.variance()["w"]
    (tensor([0., 1.]), tensor([1., 0.]))
    """

    logits: Params
    temperature: float = 1.0
    bounded: bool = False

    must_track = True

    @derived
    def mean(self) -> Params:
        return {name: value.tanh() for name, value in self.logits.items()}

    def variance(self) -> Params:
        return {name: 1.0 - value.square() for name, value in self.mean.items()}

    def sample(self, generator: Generator) -> Params:
        draws = {
            k: torch.bernoulli((2.0 * v).sigmoid(), generator=generator)
            for k, v in self.logits.items()
        }
        return {name: 2.0 * value - 1.0 for name, value in draws.items()}

    def at_mode(self) -> Point:
        return SignPoint(_signs(self.logits), self.logits)

    def draw(self, generator: Generator) -> Point:
        draws: Params = {}
        for name, value in self.logits.items():
            uniform = torch.empty_like(value).uniform_(1e-6, 1.0 - 1e-6, generator=generator)
            draws[name] = torch.tanh((value + 0.5 * uniform.logit()) / self.temperature)
        return RelaxedDraw(draws, self.logits, self.temperature)

    def log_prob(self, params: Params) -> Tensor:
        """`log q(θ)`, a 0-d tensor."""
        # log 2 cosh λ in a form that does not overflow for large λ.
        parts = {k: v.abs() + functional.softplus(-2.0 * v.abs()) for k, v in self.logits.items()}
        return vectors.dot(self.logits, params) - vectors.total(parts)

    def entropy(self, generator: Generator | None = None) -> Tensor:
        # log 2 cosh λ − λ tanh λ in a form that does not overflow for large λ.
        sizes = [2.0 * value.abs() for value in self.logits.values()]
        parts = [functional.softplus(-size) + size * (-size).sigmoid() for size in sizes]
        return torch.stack([part.sum() for part in parts]).sum()

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        if not isinstance(prior, BernoulliPrior):
            raise TypeError(_no_precision(prior))
        p = Bernoulli(prior.logits_of(self.logits))
        return -self.entropy() - p.log_prob(self.mean)

    def coordinates(self) -> Gaussian:
        return Gaussian(self.logits, UnitMatrix())

    def with_mean(self, mean: Params) -> Bernoulli:
        return replace(self, logits=vectors.clamp_(mean, 1.0) if self.bounded else mean)

    def with_precision(self, precision: Matrix) -> tuple[Bernoulli, None]:
        return self, None


def _signs(values: Params) -> Params:
    """+1 or −1 for each weight, never zero; NaN stays NaN."""
    fixed = {name: value.detach() for name, value in values.items()}
    return {name: (v / v.abs()).masked_fill(v == 0, 1.0) for name, v in fixed.items()}


def _no_precision(given: object) -> str:
    return (
        "The prior of binary weights is BernoulliPrior(logits) or a Bernoulli posterior of earlier "
        f"data, not a precision, got {given!r}; leave it out for equal chances."
    )


@dataclass(frozen=True)
class BernoulliFamily(Family):
    """Binary weights, +1 or −1, learned as natural parameters: BayesBiNN, straight-through.

    Meng, Bachmann & Khan (2020); Khan & Rue (2023), sec. 4.5, eq. 52. The first posterior has the
    signs of the module's own weights.

    - `sure`: the size of the first natural parameters; 0 is a fair coin, 10 is nearly certain.
    - `temperature`: T of the relaxed draws that gradients are taken at.
    - `straight`: natural parameters follow the gradient alone, without the pull of the entropy,
      start at the module's own weights and stay within ±1 (the straight-through estimator).
    """

    sure: float = 1.0
    temperature: float = 1.0
    straight: bool = False

    structure = Unit()
    symmetric = False
    takes_precision = False
    replay_obstacle = None

    def __post_init__(self) -> None:
        if not (self.sure >= 0 and self.temperature > 0):
            raise ValueError(
                "sure must not be negative and temperature must be positive, got "
                f"{self.sure} and {self.temperature}."
            )

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Bernoulli:
        if self.straight:
            latent = {name: value.detach().clamp(-1.0, 1.0) for name, value in params.items()}
            return Bernoulli(latent, self.temperature, bounded=True)
        return Bernoulli(vectors.scale(_signs(params), self.sure), self.temperature)

    def prior(self, given: object, params: Params) -> Prior:
        if given is None:
            return BernoulliPrior(strength=0.0 if self.straight else 1.0)
        if isinstance(given, Bernoulli):
            return BernoulliPrior({name: value.clone() for name, value in given.logits.items()})
        if isinstance(given, BernoulliPrior):
            if isinstance(given.logits, dict):
                check_fits(given.logits, params)
            return given
        raise TypeError(_no_precision(given))
