"""Where the loss is looked at: the points at which an expectation over q is estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator

from bayesrule.matrices.rotation import Rotation
from bayesrule.moments import Activations
from bayesrule.posteriors import Posterior
from bayesrule.types import Params


@dataclass(frozen=True)
class Point:
    """Weights at which the loss is evaluated; `offset = θ − mean`, None where nobody asks for it.

    Draws of independent weights have `noise = (θ − mean) / σ` instead, of those that have a
    standard deviation. Either belongs to whoever gets the point, who may use its memory again. With
    `activations` the point stands for the whole belief, whose moments are to be carried through the
    network. The weights of a `Layerwise` expectation are drawn when they are used, so they have no
    offset. With a `rotation` the weights are given as seen in its bases, and so is their gradient
    wanted.
    """

    params: Params
    offset: Params | None
    activations: Activations | None = None
    rotation: Rotation | None = None
    noise: Params | None = None


class Expectation(ABC):
    """`E_q[·]` as an average over a few points."""

    random: bool

    @property
    @abstractmethod
    def num(self) -> int:
        """How many points there are."""

    @abstractmethod
    def points(
        self, posterior: Posterior, generator: Generator, *, offsets: bool = True
    ) -> Iterator[Point]:
        """The points, one after another; without `offsets` they may come without theirs."""
