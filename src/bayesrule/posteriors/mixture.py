"""A finite mixture of diagonal Gaussians: beliefs with several modes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.matrices import Diagonal, DiagonalMatrix, Matrix, Structure
from bayesrule.posteriors._base import Family, Posterior
from bayesrule.posteriors.gaussian import Gaussian, gaussian_of
from bayesrule.posteriors.mixture_parts import (
    BASELINE,
    LOGITS,
    MixtureDraw,
    component_prior,
    components_of,
    in_blocks,
)
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import seeds, vectors
from bayesrule.types import Params, Rows

_DRAWS = 64


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
    def parts_of_step(self) -> Tensor:
        """`min(1, K π)`, (K,)."""
        return (len(self.logits) * self.weights).clamp_max(1.0)

    @property
    def mean(self) -> Params:  # type: ignore[override]
        return self._average(self.means)

    def _average(self, values: Params) -> Params:
        return {name: torch.tensordot(self.weights, v, 1) for name, v in values.items()}

    @property
    def num_parameters(self) -> int:
        return 2 * vectors.numel(self.means) + self.logits.numel() + 1

    def variance(self) -> Params:
        mean, spread = self.mean, self.precision.inverse_diagonal()
        return self._average({k: spread[k] + (v - mean[k]).square() for k, v in self.means.items()})

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

    def _expected(self, value: Callable[[Params], Tensor], generator: Generator | None) -> Tensor:
        source = generator or seeds.generator(self.logits.device, 0, 0)
        return torch.stack([value(self.sample(source)) for _ in range(_DRAWS)]).mean()

    def entropy(self, generator: Generator | None = None) -> Tensor:
        return self._expected(lambda theta: -self.log_prob(theta), generator)

    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        given = component_prior(prior)
        if not given.proper:
            return self.logits.new_tensor(math.inf)
        before = gaussian_of(given.inner, self.mean)
        return self._expected(lambda one: self.log_prob(one) - before.log_prob(one), generator)

    def coordinates(self) -> Gaussian:
        more = {LOGITS: self.logits, BASELINE: self.baseline}
        return Gaussian({**self.means, **more}, in_blocks(self.precision))

    def with_mean(self, mean: Params) -> Mixture:
        means = {name: mean[name] for name in self.means}
        return replace(self, means=means, logits=mean[LOGITS], baseline=mean[BASELINE])

    def with_precision(self, precision: Matrix) -> tuple[Mixture, None]:
        return replace(self, precision=components_of(precision)), None


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

    Khan & Rue (2023), sec. 3.2; Lin, Khan & Schmidt (2019), theorem 3. The rule is
    `Natural(retract=True)` at draws; its `rate` is that of the precisions, its `learning_rate` that
    of the means and of the log weights.

    - `components`: K.
    - `spread`: standard deviation of the first means about the module's own weights, on sides that
      follow from the weights' names.
    - `curvature`: what is believed of the loss of one datum before any is seen. Where it is too
      small, the first steps from very wide components are so large that modes are missed.
    """

    components: int = 2
    spread: float = 1.0
    curvature: float = 1.0

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
        return in_blocks(Diagonal().identity(wide, weight * self.curvature))

    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Mixture:
        means = {name: self._scattered(name, value.detach()) for name, value in params.items()}
        precision = component_prior(prior).added_to(self.first_curvature(params, weight))
        some = next(iter(params.values()))
        logits, baseline = some.new_zeros(self.components), some.new_zeros(())
        return Mixture(means, components_of(precision), logits, baseline)

    def _scattered(self, name: str, value: Tensor) -> Tensor:
        """The first means (K, *shape): their average is the weight."""
        source = seeds.generator("cpu", zlib.crc32(name.encode()), 1)
        noise = torch.randn(self.components, *value.shape, dtype=torch.float64, generator=source)
        noise = noise - noise.mean(0)
        size = noise.square().mean(0).sqrt().clamp_min(torch.finfo(value.dtype).tiny)
        return value + self.spread * (noise / size).to(value)

    def prior(self, given: object, params: Params) -> Prior:
        if isinstance(given, Mixture):
            raise TypeError(
                "A mixture is no prior of a later one; use a Gaussian posterior of earlier data, "
                f"such as those of GaussianFamily(Diagonal()), got {given!r}."
            )
        return component_prior(given)
