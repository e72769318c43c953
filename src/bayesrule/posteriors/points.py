"""Points: where the loss is looked at, and what its gradient there says of the belief."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from bayesrule.matrices import Matrix
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import vectors
from bayesrule.types import Local, Params


class Pull(NamedTuple):
    """What a point has to know to turn sums over a batch into sums of its belief.

    - `share`: its part in an average over all points and ranks; what does not depend on the data,
      such as the entropy of the belief, is added with that factor.
    - `scale`: what one example stands for; the loss of `Local` is without it.
    - `prior`: the belief before the data, in the belief's own coordinates.
    """

    share: float
    scale: float
    prior: Prior


@dataclass(frozen=True)
class Point:
    """One place at which the loss is evaluated, made by the belief that it came from.

    `coordinates` are the tensors that the loss is differentiated in: for most beliefs the weights
    themselves. A belief whose draws are made from something else (weights seen in other bases,
    relaxed binary weights) makes points of its own that say how weights come from coordinates, and
    how sums over a batch at this point become sums in the belief's own parameters.
    """

    coordinates: Params

    pulls: ClassVar[bool] = False
    """Whether sums at this point are not yet sums in the belief's own parameters."""

    def weights(self, coordinates: Params) -> Params:
        """The weights that the network is given; differentiable in the coordinates."""
        return coordinates

    @property
    def params(self) -> Params:
        """The weights that the network is given."""
        return self.weights(self.coordinates)

    @property
    def plain(self) -> Params:
        """The weights as plain tensors, without a way back to the coordinates."""
        return self.coordinates

    def seen(self, gradient: Params) -> Params:
        """A gradient in the plain weights as one in the coordinates."""
        return gradient

    @property
    def num_draws(self) -> int:
        """How many draws this point stands for: several where a stack takes them at once."""
        return 1

    @property
    def position(self) -> Params:
        """The coordinates, averaged over the draws that this point stands for."""
        return self.coordinates

    def price(self, gradient: Params) -> Matrix:
        """Price's estimate of the curvature from the gradient at this draw; may use the draw up."""
        raise TypeError("Price's estimate needs a weight draw, and this point is none.")

    def pulled(self, local: Local, pull: Pull) -> Local:
        """Sums in the coordinates as sums in the belief's own parameters."""
        return local

    def mirrored(self) -> Point:
        """The draw on the other side of the mean."""
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
