"""Points where the loss is evaluated, and what its gradient there tells of the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from bayesrule.matrices import Matrix
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import vectors
from bayesrule.types import Local, Params


class Pull(NamedTuple):
    """What a point needs to turn sums over a batch into sums in its posterior's parameters.

    - `share`: the point's share in an average over all points and ranks; terms that do not depend
      on the data, such as the entropy of the posterior, are added with that factor.
    - `scale`: the number of data that one example stands for; the loss of `Local` is without it.
    - `prior`: the prior in the posterior's own coordinates.
    """

    share: float
    scale: float
    prior: Prior


@dataclass(frozen=True)
class Point:
    """A point at which the loss is evaluated, made by a posterior.

    `coordinates` are the tensors in which the loss is differentiated: for most posteriors the
    weights themselves. A posterior whose draws are made from other tensors (weights in other bases,
    relaxed binary weights) has its own class of points, which makes the weights from the
    coordinates and turns sums over a batch at this point into sums in the posterior's own
    parameters.
    """

    coordinates: Params

    pulls: ClassVar[bool] = False
    """Whether `pulled` must turn sums at this point into sums in the posterior's parameters."""

    def weights(self, coordinates: Params) -> Params:
        """The weights that the network runs with, differentiable in the coordinates."""
        return coordinates

    @property
    def params(self) -> Params:
        """The weights that the network runs with."""
        return self.weights(self.coordinates)

    @property
    def plain(self) -> Params:
        """The weights as plain tensors, with no graph back to the coordinates."""
        return self.coordinates

    def seen(self, gradient: Params) -> Params:
        """A gradient in the plain weights as one in the coordinates."""
        return gradient

    @property
    def num_draws(self) -> int:
        """How many draws this point stands for: several if a stack makes them at once."""
        return 1

    @property
    def position(self) -> Params:
        """The coordinates, averaged over the draws that this point stands for."""
        return self.coordinates

    def price(self, gradient: Params) -> Matrix:
        """Price's estimate of the curvature from the gradient at this draw; may overwrite it."""
        raise TypeError("Price's estimate needs a weight draw, and this point is none.")

    def pulled(self, local: Local, pull: Pull) -> Local:
        """Turns sums in the coordinates into sums in the posterior's own parameters."""
        return local

    def mirrored(self) -> Point:
        """The mirror image of the draw about the mean."""
        raise TypeError("This point has no mirror image; use draws that are not antithetic.")


@dataclass(frozen=True)
class GaussianDraw(Point):
    """A draw `mean + offset` of a Gaussian with a precision."""

    mean: Params
    offset: Params
    precision: Matrix

    @classmethod
    def of(cls, mean: Params, offset: Params, precision: Matrix) -> GaussianDraw:
        """The draw at an offset from the mean."""
        return cls(vectors.add(mean, offset), mean, offset, precision)

    def price(self, gradient: Params) -> Matrix:
        return self.precision.price_(self.offset, gradient)

    def mirrored(self) -> GaussianDraw:
        return self.of(self.mean, vectors.scale(self.offset, -1.0), self.precision)
