"""The Gaussian prior of a mixture, and how the numbers of all components are kept together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesrule.matrices import BlockMatrix, DiagonalMatrix, Matrix
from bayesrule.posteriors.bernoulli import UnitMatrix
from bayesrule.posteriors.gaussian import gaussian_prior
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import vectors
from bayesrule.types import Params

LOGITS, BASELINE = "mixture.logits", "mixture.baseline"
"""The names of the components' log weights and of the average objective among the coordinates."""


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
