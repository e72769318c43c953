"""The contract of every family of beliefs over the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from bayesrule.matrices import Matrix, Structure
from bayesrule.posteriors.points import Point
from bayesrule.posteriors.prior import Prior
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Number, Params, Part

if TYPE_CHECKING:
    from bayesrule.posteriors.gaussian import Gaussian

Free = dict[str, Params]
"""What gradient descent learns of a belief, by kind: "mean", and "scales" where there are some."""


Turn = Callable[[Params], Params]
"""A map of vectors from the coordinates of one belief to those of the next."""


class ElboTerms(NamedTuple):
    """What the gradient of `share (E[loss] + kl_weight KL)` is made of.

    Gradient and curvature are those of E[loss], and are used up.
    """

    gradient: Params
    curvature: Matrix | None
    prior: Prior
    kl_weight: Number
    share: Number

    def mean_gradient(self, mean: Params) -> Params:
        """The gradient in the mean: the loss's with the prior's pull."""
        pulled = self.prior.pull_(self.gradient, mean, self.kl_weight)
        return vectors.scale_(pulled, self.share)


class Posterior(ABC):
    """A belief q over the weights of a network; how it can be moved is said by its family.

    Divergence and entropy may be estimated from draws, for which they are given a generator.
    """

    mean: Params
    independent: bool = False
    """Whether all weights are independent Gaussians, each with a variance of its own or none."""
    linearisable: bool = False
    """Whether it is a Gaussian with a `precision` that can be multiplied with Jacobians."""

    @property
    def num_parameters(self) -> int:
        """How many numbers are learned to describe the belief."""
        return vectors.numel(self.state_dict())

    @abstractmethod
    def variance(self) -> Params:
        """Marginal variances, named and shaped as the weights."""

    @abstractmethod
    def sample(self, generator: Generator) -> Params:
        """One draw of the weights."""

    @abstractmethod
    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        """`KL(q ‖ prior)` in nats, summed over all weights; a number is a Gaussian's precision."""

    @abstractmethod
    def entropy(self, generator: Generator | None = None) -> Tensor:
        """`−E_q[log q]` in nats."""

    # Where the loss is looked at.

    def at_mean(self) -> Point:
        """The point at the mean."""
        return Point(self.mean)

    def at_mode(self) -> Point:
        """The point at the most probable weights, which for Gaussians is the mean."""
        return self.at_mean()

    def draw(self, generator: Generator) -> Point:
        """A draw that knows how it came about, so that its gradient tells of the spread, too."""
        return Point(self.sample(generator))

    def masked(self, generator: Generator) -> Point:
        """The mean with some units dropped; all of it where the belief drops none."""
        return self.at_mean()

    must_track: bool = False
    """Whether every gradient at a draw has to go through the draw's own `pulled`."""
    several_draws: bool = False
    """Whether the beliefs of a stack of nets make several draws at once."""

    def draw_several(self, generators: Generators, draws: int) -> Point:
        """Several draws of each net of a stack, {name: (num, draws, *shape)}."""
        raise TypeError(f"{type(self).__name__} is drawn once at a time.")

    def untracked(self, generator: Generator) -> Point:
        """A draw for predictions, which does not remember how it was made."""
        return Point(self.sample(generator))

    def several(self, generator: Generator, num: int) -> Params:
        """The weights of as many calls of `untracked`, {name: (num, *shape)}."""
        each = [self.untracked(generator).plain for _ in range(num)]
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}

    def std(self) -> Params:
        """Standard deviations of the weights that have one, where weights are independent."""
        return {k: v.sqrt() for k, v in self.uncertain_variance().items()}

    def uncertain_variance(self) -> Params:
        """Marginal variances of the weights that have one."""
        return self.variance()

    # How the belief moves: by natural gradients, or by gradients of free parameters.

    def seen(self, prior: Prior) -> Prior:
        """A prior of the weights as it pulls in the belief's coordinates."""
        return prior

    def coordinates(self) -> Gaussian:
        """The belief as the natural-gradient rule moves it: a mean, and what it is divided by."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def whole_precision(self) -> Matrix:
        """The precision in the structure in which the curvature is kept."""
        return self.coordinates().precision

    def with_mean(self, mean: Params) -> Posterior:
        """The belief with another mean, given in its coordinates."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def with_precision(self, precision: Matrix) -> tuple[Posterior, Turn | None]:
        """The belief with another precision, and how vectors go from the old coordinates to its."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def divisor(self, precision: Matrix) -> Matrix:
        """A damped precision as a matrix that divides vectors in the belief's coordinates."""
        return precision

    def free(self) -> Free:
        """The tensors that gradient descent moves, in place."""
        raise TypeError(f"{type(self).__name__} is not moved by gradient descent.")

    def free_gradients(self, terms: ElboTerms) -> Free:
        """The gradients of `share (E[loss] + kl_weight KL)` in the free parameters."""
        raise TypeError(f"{type(self).__name__} is not moved by gradient descent.")

    def anew(self) -> Posterior:
        """The same tensors in a new object, which knows nothing worked out from them before."""
        return replace(self)  # type: ignore[type-var]

    def fault(self) -> str | None:
        """What is wrong with the spread of the belief after training has gone astray, in words."""
        return None

    @cached_property
    def any_tensor(self) -> Tensor:
        """One of the belief's own tensors."""
        return next(value for _, value in tree.parts(self, Tensor))

    @property
    def device(self) -> torch.device:
        """Where the belief's tensors are."""
        return self.any_tensor.device

    def state_dict(self) -> Params:
        """All tensors of the belief, by slash-separated names."""
        return tree.tensors(self)

    def words(self) -> str:
        """The kind of belief, in a word or two."""
        return type(self).__name__

    def __repr__(self) -> str:
        names = list(self.mean)
        shown = ", ".join(names[:3]) + (f", … {len(names) - 3} more" if len(names) > 3 else "")
        return f"<{type(self).__name__}: {self.num_parameters:,} parameters for {shown}>"


class Family(Part, ABC):
    """A choice of family: makes the first belief, and says how its beliefs can be moved.

    `stack_obstacle` and `replay_obstacle` are what keeps the steps of many nets from being taken
    together, or a step from being replayed as a CUDA graph, in words; None for nothing.
    """

    # That of the curvature which the natural-gradient rule averages; None where it moves nothing.
    structure: Structure | None = None
    # What is believed of the loss of one datum before any is seen; None is what the first batch
    # says (and until then it counts as 1).
    curvature: float | None = 1.0
    has_scales: bool = False  # Gradient descent learns its spread.
    has_mean: bool = False  # Gradient descent learns its mean at least.
    spreads: bool = True  # Its weights have a variance; False for point estimates.
    takes_precision: bool = True  # A number tells its prior, the precision of N(0, I / precision).
    independent: bool = False  # Weights are independent Gaussians with a standard deviation each.
    symmetric: bool = True  # Draws have a mirror image on the other side of the mean.
    needs_draws: bool = False  # Its mean alone is no place to look at the loss from.
    linearisable: bool = False  # A Gaussian whose precision can be multiplied with Jacobians.
    own_coordinates: bool = False  # Gradients are taken in tensors that the weights are made from.
    needs_additive: bool = False  # A gradient is divided among its parts, point by point.
    drops: bool = False  # Its beliefs drop units at random.
    piece_obstacle: str | None = None  # Why pieces of a batch do not add up to it, in words.
    group_obstacle: str | None = None  # Why it cannot be that of one group of weights among others.

    @abstractmethod
    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Posterior:
        """The belief before the first step; `weight` is num_data / temperature."""

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        """The curvature of the whole data set before any is seen."""
        if self.structure is None:
            raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")
        curvature = 1.0 if self.curvature is None else self.curvature
        return self.structure.identity(coordinates, weight * curvature)

    @derived
    def looks_first(self) -> bool:
        """Whether the first batch says how large the first curvature is."""
        return self.curvature is None

    def usual_temperature(self, num_data: float, params: Params) -> float:
        """The temperature where nobody says.

        A belief that learns the spread of each weight, or of each layer, by itself counts all P
        weights as determined by the data, and then believes the function at N training rows to have
        P/N times the variance of the noise on average. No exact posterior has more than the noise.
        With P above N the temperature N/P brings it back to that; otherwise it is 1. Where the
        spread is seen in training, N is a twentieth for classes (`Likelihood.spread_share`).
        """
        size = self.counted(params)
        return min(1.0, num_data / size) if size else 1.0

    def counted(self, params: Params) -> int:
        """How many weights are counted as determined each by itself, whatever the others are."""
        counts = self.structure is not None and self.structure.counts_each
        return vectors.numel(params) if counts else 0

    def looked(self, curvature: float) -> Family:
        """The family with a first curvature of each datum, where it has none of its own."""
        return replace(cast(Any, self), curvature=curvature) if self.looks_first else self

    @abstractmethod
    def prior(self, given: object, params: Params) -> Prior:
        """The prior in the coordinates of this family: from a number, a prior or a posterior.

        None is the prior where nobody says.
        """

    def other_form(self) -> Family | None:
        """The family that holds the same beliefs in another form, chosen on other devices."""
        return None

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        """A belief of the other form in this one, and how its vectors change with it."""
        raise TypeError(f"{type(self).__name__} has no other form.")

    def for_model(self, model: nn.Module) -> Family:
        """The same choice for one module, whose layers it may have to know."""
        return self

    @property
    def stack_obstacle(self) -> str | None:
        return f"the family {type(self).__name__}"

    replay_obstacle = stack_obstacle
