"""The draws and the Gaussian prior of a mixture, and how its components are kept together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesrule.matrices import BlockMatrix, DiagonalMatrix, Matrix
from bayesrule.posteriors.bernoulli import UnitMatrix
from bayesrule.posteriors.gaussian import gaussian_prior
from bayesrule.posteriors.points import Point, Pull
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import vectors
from bayesrule.types import Local, Params

if TYPE_CHECKING:
    from bayesrule.posteriors.mixture import Mixture

LOGITS, BASELINE = "mixture.logits", "mixture.baseline"
"""The names of the components' log weights and of the average objective among the coordinates."""
# An objective counts as at most so many nats from the average, which is not known at first.
_FARTHEST = 5.0
# Log weights learn more slowly than means, or the first mode that is found would take them all.
_SLOWER = 0.1


def in_blocks(components: DiagonalMatrix) -> BlockMatrix:
    """The matrix of all coordinates: diagonals of the components, the identity for the rest."""
    groups = {"components": tuple(components.values), "weights": (LOGITS, BASELINE)}
    return BlockMatrix({"components": components, "weights": UnitMatrix()}, groups)


def components_of(blocks: Matrix) -> DiagonalMatrix:
    """The diagonals (K, *shape) in such a matrix."""
    assert isinstance(blocks, BlockMatrix)
    components = blocks.blocks["components"]
    assert isinstance(components, DiagonalMatrix)
    return components


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

    def slopes(self, means: Params) -> tuple[Params, Params]:
        """`P (m_k − centre)` and the diagonal of P, (K, *shape)."""
        bends = self.inner.added_to(DiagonalMatrix(vectors.zeros_like(means))).diagonal()
        return self.inner.pull_(vectors.zeros_like(means), means), bends

    def added_to(self, curvature: Matrix) -> Matrix:
        return in_blocks(self.inner.added_to(components_of(curvature)))  # type: ignore[arg-type]

    def diagonal(self, like: Params) -> float | Params:
        return self.inner.diagonal(like)

    def log_prob(self, params: Params) -> Tensor:
        return self.inner.log_prob(params)

    def describe(self) -> Any:
        return self.inner.describe()


def component_prior(given: object) -> ComponentPrior:
    """A Gaussian prior, whatever it was given as, for every component."""
    return given if isinstance(given, ComponentPrior) else ComponentPrior(gaussian_prior(given))


@dataclass(frozen=True)
class MixtureDraw(Point):
    """A draw θ of the whole mixture; its gradient is divided among the components.

    Component k has the share `δ_k = q_k(θ) / q(θ)` of everything, whose mean over draws is 1. With
    `f = loss − log p + log q` its mean follows `E_q[δ_k ∇f] = E_{q_k}[∇f]`, its precision
    `E_q[δ_k ∇²f]`; Khan & Rue (2023), eqs 29 and 30. The rule adds the Gaussian prior's part in
    closed form. The log weights follow `E_q[(δ_k − 1) f]`, a tenth as fast.

    A share may be as large as 1/π_k, so components of small weight move by `c_k = min(1, K π_k)`
    of their step, which leaves the optimum where it is.
    """

    belief: Mixture

    pulls = True

    @cached_property
    def _log_probs(self) -> Tensor:
        return self.belief.component_log_probs(self.coordinates)

    @property
    def _log_prob(self) -> Tensor:
        return (self.belief.log_weights + self._log_probs).logsumexp(0)

    @property
    def shares(self) -> Tensor:
        """`δ`, (K,)."""
        return (self._log_probs - self._log_prob).exp()

    @property
    def position(self) -> Params:
        """`δ_k θ` of each component, (K, *shape): over draws its mean is `m_k`."""
        wide = {k: self.coordinates[k].expand_as(m) for k, m in self.belief.means.items()}
        return vectors.scale(wide, self.shares)

    def price(self, gradient: Params) -> Matrix:
        """Of each component `S_k (θ − m_k) ∘ ∇ℓ`, (K, *shape)."""
        away = self.belief.scaled_offsets(self.coordinates)
        return DiagonalMatrix({name: value * gradient[name] for name, value in away.items()})

    def pulled(self, local: Local, pull: Pull) -> Local:
        assert isinstance(pull.prior, ComponentPrior)
        belief, shares = self.belief, self.shares
        part = belief.parts_of_step
        first, second = belief.slopes(self.coordinates)
        pulls, bends = pull.prior.slopes(belief.means)

        def divided(value: Params, slope: Params, prior: Params) -> Params:
            """`c_k δ_k (value + share slope)`, and what of the prior's part is too much then."""
            total = vectors.add(value, slope, alpha=pull.share)
            wide = {k: one.expand_as(belief.means[k]) for k, one in total.items()}
            closed = vectors.scale(prior, pull.share * (part - 1.0))
            return vectors.add(vectors.scale(wide, part * shares), closed)

        gradient = divided(local.gradient, first, pulls) | self._of_weights(local, pull, shares)
        if local.curvature is None:
            return replace(local, gradient=gradient)
        values = divided(local.curvature.diagonal(), second, bends)
        target = vectors.add(values, belief.precision.values, alpha=pull.share)
        return replace(local, gradient=gradient, curvature=in_blocks(DiagonalMatrix(target)))

    def _of_weights(self, local: Local, pull: Pull, shares: Tensor) -> Params:
        """The gradients of the log weights and of the average objective."""
        # The loss of the whole data at this draw, with what the prior and the entropy add.
        loss = pull.scale * local.loss / pull.share
        objective = loss + self._log_prob - pull.prior.log_prob(self.coordinates)
        ahead = objective - self.belief.baseline
        change = _SLOWER * self.belief.parts_of_step * (shares - 1.0)
        logits = pull.share * change * ahead.clamp(-_FARTHEST, _FARTHEST)
        return {LOGITS: logits, BASELINE: -pull.share * ahead}
