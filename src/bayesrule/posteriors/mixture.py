"""A finite mixture of diagonal Gaussians: beliefs with several modes."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.matrices import BlockMatrix, Diagonal, DiagonalMatrix, Matrix, Structure
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.bernoulli import UnitMatrix
from bayesrule.posteriors.gaussian import Gaussian, gaussian_prior
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import seeds, vectors
from bayesrule.types import Local, Params, Rows

LOGITS, BASELINE = "mixture.logits", "mixture.baseline"
"""The names of the components' log weights and of the average objective among the coordinates."""
_DRAWS = 64
# How far an objective may be from the average one, while that is not known yet.
_FARTHEST = 5.0


def _wide(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for each component, (K,), beside their weights (K, *shape)."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))


@dataclass(frozen=True)
class MixtureDraw(Point):
    """A draw θ of the whole mixture; its gradient is divided among the components.

    Component k has the share `δ_k = q_k(θ) / q(θ)` of everything, whose mean over draws is 1. With
    `f = loss − log p + log q`, the mean's gradient is `E[δ_k ∇f]` and the precision's `E[δ_k ∇²f]`;
    Lin, Khan & Schmidt (2019), theorem 3. Of `log p` a Gaussian prior takes care in closed form.
    The log weights follow their plain gradient `E[π_k (δ_k − 1) f]`, for the natural one, without
    π_k, makes weights that are nearly zero jump.
    """

    belief: Mixture

    pulls = True

    @cached_property
    def _scores(self) -> tuple[Tensor, Tensor]:
        """`log q(θ)` and the shares δ (K,)."""
        each = self.belief.component_log_probs(self.coordinates)
        total = (self.belief.log_weights + each).logsumexp(0)
        return total, (each - total).exp()

    def price(self, gradient: Params) -> Matrix:
        """Of each component `S_k (θ − m_k) ∘ ∇ℓ`, (K, *shape)."""
        away = self.belief.scaled_offsets(self.coordinates)
        return DiagonalMatrix({name: value * gradient[name] for name, value in away.items()})

    def pulled(self, local: Local, pull: Pull) -> Local:
        log_q, shares = self._scores
        first, second = self.belief.slopes(self.coordinates)
        gradient = {
            name: _wide(shares, mean) * (local.gradient[name] + pull.share * first[name])
            for name, mean in self.belief.means.items()
        }
        # The loss of the whole data at this draw, with what the prior and the entropy add.
        objective = pull.scale * local.loss / pull.share
        objective = objective + log_q - pull.prior.log_prob(self.coordinates)
        ahead = objective - self.belief.baseline
        change = self.belief.weights * (shares - 1.0)
        gradient[LOGITS] = pull.share * change * ahead.clamp(-_FARTHEST, _FARTHEST)
        gradient[BASELINE] = -pull.share * ahead
        if local.curvature is None:
            return replace(local, gradient=gradient)
        precision, found = self.belief.precision.values, local.curvature.diagonal()
        curvature = {
            name: _wide(shares, own) * (found[name] + pull.share * second[name]) + pull.share * own
            for name, own in precision.items()
        }
        return replace(local, gradient=gradient, curvature=_blocks(DiagonalMatrix(curvature)))


def _blocks(components: DiagonalMatrix) -> BlockMatrix:
    groups = {"components": tuple(components.values), "weights": (LOGITS, BASELINE)}
    return BlockMatrix({"components": components, "weights": UnitMatrix()}, groups)


@dataclass(frozen=True)
class Mixture(Posterior):
    """`q(θ) = Σ_k π_k N(m_k, diag(s_k)⁻¹)`: `means` and `precision` (K, *shape), `logits` (K,).

    `baseline` is the average objective over draws, from which those of single draws are counted
    where the weights π are learned: that leaves their gradient as it is and takes its noise away.
    """

    means: Params
    precision: DiagonalMatrix
    logits: Tensor
    baseline: Tensor

    must_track = True

    __repr__ = Posterior.__repr__

    @property
    def log_weights(self) -> Tensor:
        """`log π`, (K,)."""
        return self.logits.log_softmax(0)

    @property
    def weights(self) -> Tensor:
        """`π`, (K,)."""
        return self.logits.softmax(0)

    @property
    def mean(self) -> Params:  # type: ignore[override]
        return self._average(self.means)

    def _average(self, values: Params) -> Params:
        return {name: torch.tensordot(self.weights, v, 1) for name, v in values.items()}

    @property
    def num_parameters(self) -> int:
        return 2 * vectors.numel(self.means) + self.logits.numel() + 1

    def variance(self) -> Params:
        squares = {
            k: v.square() + self.precision.values[k].reciprocal() for k, v in self.means.items()
        }
        return {k: v - self.mean[k].square() for k, v in self._average(squares).items()}

    def sample(self, generator: Generator) -> Params:
        one = torch.multinomial(self.weights, 1, generator=generator)
        chosen = {name: value[one].squeeze(0) for name, value in self.means.items()}
        noise = vectors.randn_like(chosen, generator)
        spread = {k: v[one].squeeze(0).rsqrt() for k, v in self.precision.values.items()}
        return vectors.addcmul(chosen, noise, spread)

    def draw(self, generator: Generator) -> Point:
        return MixtureDraw(self.sample(generator), self)

    def component_log_probs(self, params: Params) -> Tensor:
        """`log N(θ; m_k, diag(s_k)⁻¹)` of each component, (K,)."""
        parts = []
        for name, mean in self.means.items():
            s = self.precision.values[name]
            logs = s.log() - s * (params[name] - mean).square() - math.log(2.0 * math.pi)
            parts.append(0.5 * logs.flatten(start_dim=1).sum(1))
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
        away = self.scaled_offsets(params)
        part = (self.log_weights + self.component_log_probs(params)).softmax(0)
        first = {k: -torch.tensordot(part, v, 1) for k, v in away.items()}
        bent = {k: v.square() - self.precision.values[k] for k, v in away.items()}
        second = {k: torch.tensordot(part, v, 1) - first[k].square() for k, v in bent.items()}
        return first, second

    def _expected(self, function: Any, generator: Generator | None) -> Tensor:
        source = generator or seeds.generator(self.logits.device, 0, 0)
        draws = (self.sample(source) for _ in range(_DRAWS))
        return torch.stack([function(draw) for draw in draws]).mean()

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return self._expected(lambda theta: -self.log_prob(theta), generator)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        given = (
            prior if isinstance(prior, ComponentPrior) else ComponentPrior(gaussian_prior(prior))
        )
        if not given.proper:
            return self.logits.new_tensor(math.inf)
        size = vectors.numel(self.means) // len(self.logits)
        ratio = lambda theta: self.log_prob(theta) - given.normalised(theta, size)  # noqa: E731
        return self._expected(ratio, generator)

    def coordinates(self) -> Gaussian:
        more = {LOGITS: self.logits, BASELINE: self.baseline}
        return Gaussian({**self.means, **more}, _blocks(self.precision))

    def with_mean(self, mean: Params) -> Mixture:
        means = {name: mean[name] for name in self.means}
        return replace(self, means=means, logits=mean[LOGITS], baseline=mean[BASELINE])

    def with_precision(self, precision: Matrix) -> tuple[Mixture, None]:
        assert isinstance(precision, BlockMatrix)
        components = precision.blocks["components"]
        assert isinstance(components, DiagonalMatrix)
        return replace(self, precision=components), None


@dataclass(frozen=True)
class ComponentPrior(Prior):
    """A Gaussian prior of the weights, which pulls on the mean of every component."""

    inner: Prior

    @property
    def proper(self) -> bool:
        return self.inner.proper

    def pull_(self, gradient: Params, at: Params, factor: float | Tensor = 1.0) -> Params:
        names = [name for name in gradient if name not in (LOGITS, BASELINE)]
        self.inner.pull_({k: gradient[k] for k in names}, {k: at[k] for k in names}, factor)
        return gradient

    def added_to(self, curvature: Matrix) -> Matrix:
        assert isinstance(curvature, BlockMatrix)
        return _blocks(self.inner.added_to(curvature.blocks["components"]))  # type: ignore[arg-type]

    def diagonal(self, like: Params) -> float | Params:
        return self.inner.diagonal(like)

    def log_prob(self, params: Params) -> Tensor:
        return self.inner.log_prob(params)

    def normalised(self, params: Params, size: int) -> Tensor:
        """The log density with the number that makes it a density."""
        precision = self.inner.diagonal(params)
        if isinstance(precision, dict):
            return self.inner.log_prob(params)
        return self.inner.log_prob(params) + 0.5 * size * math.log(precision / (2.0 * math.pi))

    def describe(self) -> Any:
        return self.inner.describe()


@dataclass(frozen=True)
class _Components(Structure):
    """One diagonal for each component, made from the diagonal of a curvature at a draw."""

    mixes_entropy = True

    def identity(self, params: Params, scale: float) -> Matrix:
        return Diagonal().identity(params, scale)

    def contract(self, rows: Rows) -> Matrix:
        return Diagonal().contract(rows)

    def project(self, matrix: Tensor, params: Params) -> Matrix:
        return Diagonal().project(matrix, params)


@dataclass(frozen=True)
class MixtureFamily(Family):
    """Mixtures of K diagonal Gaussians, for posteriors with several modes.

    Lin, Khan & Schmidt (2019); Khan & Rue (2023), sec. 3.2. The first components lie about the
    module's own weights at random, `spread` apart; the draws follow from the names. The rule is
    `Natural(retract=True)` at draws; its `rate` is that of the precisions, its `learning_rate` that
    of the means and of the log weights.

    - `components`: K.
    - `curvature`: what is believed of the loss of one datum before any is seen; small values, which
      make wide components, miss fewer modes.
    """

    components: int = 2
    spread: float = 1.0
    curvature: float = 0.0

    symmetric = False
    needs_additive = True
    needs_draws = True

    def __post_init__(self) -> None:
        if not (self.components >= 1 and self.spread >= 0 and self.curvature >= 0):
            raise ValueError(
                "MixtureFamily takes at least one component, and a spread and a curvature that are "
                f"not negative, got {self.components}, {self.spread} and {self.curvature}."
            )

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return _Components()

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        wide = {k: v.expand(self.components, *v.shape) for k, v in coordinates.items()}
        return _blocks(Diagonal().identity(wide, weight * self.curvature))

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Mixture:
        means = {name: self._scattered(name, value.detach()) for name, value in params.items()}
        given = _component_prior(prior)
        precision = given.added_to(self.first_curvature(params, weight))
        assert isinstance(precision, BlockMatrix)
        like = next(iter(params.values()))
        logits, baseline = like.new_zeros(self.components), like.new_zeros(())
        return Mixture(means, precision.blocks["components"], logits, baseline)  # type: ignore[arg-type]

    def _scattered(self, name: str, value: Tensor) -> Tensor:
        source = seeds.generator("cpu", zlib.crc32(name.encode()), 1)
        noise = torch.randn(self.components, *value.shape, dtype=torch.float64, generator=source)
        return value + self.spread * noise.to(value)

    def prior(self, given: object, params: Params) -> Prior:
        return _component_prior(given)


def _component_prior(given: object) -> ComponentPrior:
    return given if isinstance(given, ComponentPrior) else ComponentPrior(gaussian_prior(given))
