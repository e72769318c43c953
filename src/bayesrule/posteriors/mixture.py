"""Finite mixtures of diagonal Gaussians: posteriors with several modes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.matrices import BlockMatrix, Diagonal, DiagonalMatrix, Matrix
from bayesrule.matrices.blocks import UnitMatrix
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian, gaussian_of, gaussian_prior
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import EarlierPosterior, Prior
from bayesrule.tensors import seeds, tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Local, Number, Params

LOGITS, BASELINE = "mixture.logits", "mixture.baseline"
"""The coordinates that hold the components' log weights and the average objective."""
# An objective counts as at most this many nats from the average, which is unknown at first.
_FARTHEST = 5.0
# Log weights learn more slowly than means, or the first mode found would take all weight.
_SLOWER = 0.1
# The number of draws for entropies and divergences.
_DRAWS = 64


def _in_blocks(components: Matrix) -> BlockMatrix:
    """The matrix over all coordinates: diagonals for the components, the identity for the rest."""
    groups = {"components": tuple(components.diagonal()), "weights": (LOGITS, BASELINE)}
    return BlockMatrix({"components": components, "weights": UnitMatrix()}, groups)


class Weighted:
    """A mixture whose components have log weights `logits`, (K,), up to a constant."""

    logits: Tensor

    @property
    def log_weights(self) -> Tensor:
        """`log π`, (K,)."""
        return self.logits.log_softmax(0)

    @property
    def weights(self) -> Tensor:
        """`π`, (K,)."""
        return self.logits.softmax(0)


@dataclass(frozen=True, repr=False)
class Mixture(Weighted, Posterior):
    """`q(θ) = Σ_k π_k N(m_k, diag(s_k)⁻¹)`: `means` and `precision` (K, *shape), `logits` (K,).

    `baseline` is the average objective over draws, which is subtracted from that of each draw to
    learn the weights π: that leaves their expected gradient unchanged and reduces its noise.
    """

    means: Params
    precision: DiagonalMatrix
    logits: Tensor
    baseline: Tensor

    must_track = True

    @property
    def parts_of_step(self) -> Tensor:
        """`min(1, K π)`, (K,)."""
        return (len(self.logits) * self.weights).clamp_max(1.0)

    @derived
    def mean(self) -> Params:
        return self._average(self.means)

    def _average(self, values: Params) -> Params:
        return {name: torch.tensordot(self.weights, v, 1) for name, v in values.items()}

    def variance(self) -> Params:
        mean, spread = self.mean, self.precision.inverse_diagonal()
        return self._average({k: spread[k] + (v - mean[k]).square() for k, v in self.means.items()})

    def sample(self, generator: Generator) -> Params:
        race = torch.empty_like(self.logits).exponential_(generator=generator)
        k = (self.weights / race).argmax()  # component k wins with probability π_k
        mean = {name: value[k] for name, value in self.means.items()}
        noise = vectors.randn_like(mean, generator)
        std = {name: value[k].rsqrt() for name, value in self.precision.values.items()}
        return vectors.addcmul(mean, noise, std)

    def draw(self, generator: Generator) -> Point:
        return MixtureDraw(self.sample(generator), self)

    def component_log_probs(self, params: Params) -> Tensor:
        """`log N(θ; m_k, diag(s_k)⁻¹)` of each component, (K,)."""
        parts = []
        for name, mean in self.means.items():
            s = self.precision.values[name]
            logs = s.log() - s * (params[name] - mean).square() - math.log(2.0 * math.pi)
            parts.append(0.5 * vectors.in_rows(logs, 1).sum(1))
        return torch.stack(parts).sum(0)

    def log_prob(self, params: Params) -> Tensor:
        """`log q(θ)`, a 0-d tensor."""
        return (self.log_weights + self.component_log_probs(params)).logsumexp(0)

    def scaled_offsets(self, params: Params) -> Params:
        """`S_k (θ − m_k)` of each component, (K, *shape)."""
        values = self.precision.values
        return {k: values[k] * (params[k] - mean) for k, mean in self.means.items()}

    def slopes(self, params: Params) -> tuple[Params, Params]:
        """`∇ log q(θ)` and the diagonal of `∇² log q(θ)`."""
        offsets = self.scaled_offsets(params)
        shares = (self.log_weights + self.component_log_probs(params)).softmax(0)
        first = {k: -torch.tensordot(shares, v, 1) for k, v in offsets.items()}
        bent = {k: v.square() - self.precision.values[k] for k, v in offsets.items()}
        second = {k: torch.tensordot(shares, v, 1) - first[k].square() for k, v in bent.items()}
        return first, second

    def _expected(self, value: Callable[[Params], Tensor], generator: Generator | None) -> Tensor:
        source = generator or seeds.generator(self.logits.device, 0, 0)
        return torch.stack([value(self.sample(source)) for _ in range(_DRAWS)]).mean()

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return self._expected(lambda theta: -self.log_prob(theta), generator)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        prior = component_prior(prior)
        if not prior.proper:
            return self.logits.new_tensor(math.inf)
        p = prior.mixture or gaussian_of(prior.gaussian, self.mean)
        return self._expected(lambda theta: self.log_prob(theta) - p.log_prob(theta), generator)

    def coordinates(self) -> Gaussian:
        more = {LOGITS: self.logits, BASELINE: self.baseline}
        return Gaussian({**self.means, **more}, _in_blocks(self.precision))

    def with_mean(self, mean: Params) -> Mixture:
        means = {name: mean[name] for name in self.means}
        return replace(self, means=means, logits=mean[LOGITS], baseline=mean[BASELINE])

    def with_precision(self, precision: Matrix) -> tuple[Mixture, None]:
        components = precision.only(tuple(self.means))
        return replace(self, precision=DiagonalMatrix(components.diagonal())), None


@dataclass(frozen=True)
class ComponentPrior(Prior):
    """A prior over the weights, with a Gaussian that pulls on the mean of every component.

    If the prior is an earlier `mixture`, the Gaussian has its mean and its variances; the rest of
    `−log p` is then evaluated at draws, as the loss is (`left_at`).
    """

    gaussian: Prior
    mixture: Mixture | None = None

    @derived
    def proper(self) -> bool:
        return self.gaussian.proper

    def pull_(self, gradient: Params, at: Params, factor: Number = 1.0) -> Params:
        names = [name for name in gradient if name not in (LOGITS, BASELINE)]
        self.gaussian.pull_({k: gradient[k] for k in names}, {k: at[k] for k in names}, factor)
        return gradient

    def slopes(self, at: Params) -> tuple[Params, Params]:
        """`P (at − centre)` and the diagonal of P: the slopes of the Gaussian's `−log p`."""
        zeros = vectors.zeros_like(at)
        bends = self.gaussian.added_to(DiagonalMatrix(zeros)).diagonal()
        return self.gaussian.pulled(zeros, at), bends

    def left_at(self, params: Params) -> tuple[Params, Params] | None:
        """The slopes of `−log p` minus those of the Gaussian; None if these are all."""
        if self.mixture is None:
            return None
        both = zip(self.mixture.slopes(params), self.slopes(params), strict=True)
        first, second = (vectors.scale(vectors.add(log_p, part), -1.0) for log_p, part in both)
        return first, second

    def added_to(self, curvature: Matrix) -> Matrix:
        components = curvature.only(tuple(curvature.diagonal()))
        return _in_blocks(self.gaussian.added_to(components))

    def diagonal(self, like: Params) -> float | Params:
        return self.gaussian.diagonal(like)

    def log_prob(self, params: Params) -> Tensor:
        return (self.mixture or self.gaussian).log_prob(params)

    def describe(self) -> Any:
        return self.gaussian.describe()


def component_prior(given: object) -> ComponentPrior:
    """The prior of all components, from a precision, a prior or an earlier posterior."""
    if isinstance(given, Mixture):
        kept = tree.map_tensors(given, torch.clone)
        precision = DiagonalMatrix(vectors.reciprocal(kept.variance()))
        return ComponentPrior(EarlierPosterior(Gaussian(kept.mean, precision)), kept)
    return given if isinstance(given, ComponentPrior) else ComponentPrior(gaussian_prior(given))


@dataclass(frozen=True)
class MixtureDraw(Point):
    """A draw θ of the whole mixture, whose gradient is divided among the components.

    Component k gets the share `δ_k = q_k(θ) / q(θ)`, whose mean over draws is 1. With
    `f = loss − log p + log q`, its mean follows `E_q[δ_k ∇f] = E_{q_k}[∇f]` and its precision
    `E_q[δ_k ∇²f]`; Khan & Rue (2023), eqs 29 and 30. The rule adds the Gaussian part of the prior
    in closed form. The log weights follow `E_q[(δ_k − 1) f]`, at a tenth of the rate.

    A share may be as large as 1/π_k, so components of small weight take only `c_k = min(1, K π_k)`
    of their step, which leaves the optimum unchanged.
    """

    posterior: Mixture

    pulls = True

    @cached_property
    def _log_probs(self) -> Tensor:
        return self.posterior.component_log_probs(self.coordinates)

    @property
    def _log_prob(self) -> Tensor:
        return (self.posterior.log_weights + self._log_probs).logsumexp(0)

    @property
    def shares(self) -> Tensor:
        """`δ`, (K,)."""
        return (self._log_probs - self._log_prob).exp()

    @property
    def position(self) -> Params:
        """`δ_k θ` of each component, (K, *shape): over draws its mean is `m_k`."""
        theta = {k: self.coordinates[k].expand_as(m) for k, m in self.posterior.means.items()}
        return vectors.scale(theta, self.shares)

    def price(self, gradient: Params) -> Matrix:
        """`S_k (θ − m_k) ∘ ∇ℓ` of each component, (K, *shape)."""
        offsets = self.posterior.scaled_offsets(self.coordinates)
        return DiagonalMatrix({name: value * gradient[name] for name, value in offsets.items()})

    def pulled(self, local: Local, pull: Pull) -> Local:
        assert isinstance(pull.prior, ComponentPrior)
        posterior, shares = self.posterior, self.shares
        part = posterior.parts_of_step
        first, second = posterior.slopes(self.coordinates)
        if left := pull.prior.left_at(self.coordinates):
            first, second = vectors.add(first, left[0]), vectors.add(second, left[1])
        pulls, bends = pull.prior.slopes(posterior.means)

        def divided(value: Params, slope: Params, prior: Params) -> Params:
            """`c_k δ_k (value + share slope)`, less the prior that the rule adds beyond `c_k`."""
            total = vectors.add(value, slope, alpha=pull.share)
            total = {k: v.expand_as(posterior.means[k]) for k, v in total.items()}
            excess = vectors.scale(prior, pull.share * (part - 1.0))
            return vectors.add(vectors.scale(total, part * shares), excess)

        gradient = divided(local.gradient, first, pulls)
        gradient |= self._log_weight_gradients(local, pull, shares)
        if local.curvature is None:
            return replace(local, gradient=gradient)
        values = divided(local.curvature.diagonal(), second, bends)
        target = vectors.add(values, posterior.precision.values, alpha=pull.share)
        return replace(local, gradient=gradient, curvature=_in_blocks(DiagonalMatrix(target)))

    def _log_weight_gradients(self, local: Local, pull: Pull, shares: Tensor) -> Params:
        """The gradients of the log weights and of the average objective."""
        # The loss of all data at this draw, plus the terms of the prior and the entropy.
        loss = pull.scale * local.loss / pull.share
        objective = loss + self._log_prob - pull.prior.log_prob(self.coordinates)
        excess = objective - self.posterior.baseline
        change = _SLOWER * self.posterior.parts_of_step * (shares - 1.0)
        logits = pull.share * change * excess.clamp(-_FARTHEST, _FARTHEST)
        return {LOGITS: logits, BASELINE: -pull.share * excess}


class _Components(Diagonal):
    """One diagonal for each component, made from the diagonal of a curvature at a draw."""

    mixes_entropy = True
    independent = elementwise = stacks = replays = False


@dataclass(frozen=True)
class MixtureFamily(Family):
    """Mixtures of K diagonal Gaussians, for posteriors with several modes.

    Khan & Rue (2023), sec. 3.2; Lin, Khan & Schmidt (2019), theorem 3. The rule is
    `Natural(retract=True)` at draws: its `rate` is that of the precisions, its `learning_rate` that
    of the means and the log weights.

    - `components`: K.
    - `spread`: standard deviation of the initial means about the module's own weights; the offsets
      are pseudo-random, seeded by the weights' names.
    - `curvature`: assumed curvature of the loss per datum before any data; None: the first batch
      tells. If it is too small, modes are missed: very wide components begin with large steps.
    """

    components: int = 2
    spread: float = 1.0
    curvature: float | None = 1.0

    structure = _Components()
    symmetric = False
    needs_additive = True
    needs_draws = True
    piece_obstacle = "MixtureFamily() looks at how far the loss of the whole batch is from others"
    group_obstacle = "it divides gradients among its parts; use it for all weights"

    def __post_init__(self) -> None:
        fits = self.curvature is None or self.curvature >= 0
        if not (self.components >= 1 and self.spread >= 0 and fits):
            raise ValueError(
                "MixtureFamily takes at least one component, and a spread and a curvature that are "
                f"not negative, got {self.components}, {self.spread} and {self.curvature}."
            )

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        means = {k: v.expand(self.components, *v.shape) for k, v in coordinates.items()}
        return _in_blocks(super().first_curvature(means, weight))

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Mixture:
        means = {name: self._scattered(name, value.detach()) for name, value in params.items()}
        precision = component_prior(prior).added_to(self.first_curvature(params, weight))
        like = next(iter(params.values()))
        logits, baseline = like.new_zeros(self.components), like.new_zeros(())
        return Mixture(means, DiagonalMatrix(precision.diagonal()), logits, baseline)

    def _scattered(self, name: str, value: Tensor) -> Tensor:
        """The initial means (K, *shape), whose average is the weight."""
        source = seeds.generator("cpu", zlib.crc32(name.encode()), 1)
        noise = torch.randn(self.components, *value.shape, dtype=torch.float64, generator=source)
        noise = noise - noise.mean(0)
        size = noise.square().mean(0).sqrt().clamp_min(torch.finfo(value.dtype).tiny)
        return value + self.spread * (noise / size).to(value)

    def prior(self, given: object, params: Params) -> Prior:
        return component_prior(given)
