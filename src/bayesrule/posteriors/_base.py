"""The contract of every posterior over the weights and of every family of them."""

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
"""The tensors that gradient descent learns, by kind: "mean", and "scales" if there are any."""


Turn = Callable[[Params], Params]
"""Maps vectors from the coordinates of one posterior to those of the next."""


class ElboTerms(NamedTuple):
    """The terms of the gradient of `share (E[loss] + kl_weight KL)`.

    Gradient and curvature are those of E[loss], and may be overwritten.
    """

    gradient: Params
    curvature: Matrix | None
    prior: Prior
    kl_weight: Number
    share: Number

    def mean_gradient(self, mean: Params) -> Params:
        """The gradient in the mean: that of the loss plus that of the prior."""
        pulled = self.prior.pull_(self.gradient, mean, self.kl_weight)
        return vectors.scale_(pulled, self.share)


class Posterior(ABC):
    """A posterior q over the weights of a network; its family says how it can be moved.

    Divergence and entropy may be estimated from draws, for which they take a generator.
    """

    mean: Params
    independent: bool = False
    """Whether all weights are independent Gaussians, each with a variance of its own or none."""
    linearisable: bool = False
    """Whether it is a Gaussian with a `precision` that can be multiplied with Jacobians."""

    @property
    def num_parameters(self) -> int:
        """How many numbers describe the posterior."""
        return vectors.numel(self.state_dict())

    @abstractmethod
    def variance(self) -> Params:
        """Marginal variances, named and shaped as the weights."""

    @abstractmethod
    def sample(self, generator: Generator) -> Params:
        """One draw of the weights."""

    @abstractmethod
    def kl(self, prior: Prior | float, generator: Generator | None = None) -> Tensor:
        """`KL(q ‖ prior)` in nats, over all weights; a number is the precision of a Gaussian."""

    @abstractmethod
    def entropy(self, generator: Generator | None = None) -> Tensor:
        """`−E_q[log q]` in nats."""

    # Points at which the loss is evaluated.

    def at_mean(self) -> Point:
        """The point at the mean."""
        return Point(self.mean)

    def at_mode(self) -> Point:
        """The point at the most probable weights, which is the mean for a Gaussian."""
        return self.at_mean()

    def draw(self, generator: Generator) -> Point:
        """A draw that keeps how it was made, so that its gradient also informs the spread."""
        return Point(self.sample(generator))

    def masked(self, generator: Generator) -> Point:
        """The mean with random units dropped; the whole mean if the posterior drops none."""
        return self.at_mean()

    must_track: bool = False
    """Whether every gradient at a draw must be passed to the draw's own `pulled`."""
    several_draws: bool = False
    """Whether the posteriors of a stack of nets can make several draws at once."""

    def draw_several(self, generators: Generators, draws: int) -> Point:
        """Several draws of each net of a stack, {name: (num, draws, *shape)}."""
        raise TypeError(f"{type(self).__name__} is drawn once at a time.")

    def untracked(self, generator: Generator) -> Point:
        """A draw for predictions, which does not keep how it was made."""
        return Point(self.sample(generator))

    def several(self, generator: Generator, num: int) -> Params:
        """The weights of `num` calls of `untracked`, {name: (num, *shape)}."""
        draws = [self.untracked(generator).plain for _ in range(num)]
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}

    def std(self) -> Params:
        """Standard deviations of independent weights that have one."""
        return {k: v.sqrt() for k, v in self.uncertain_variance().items()}

    def uncertain_variance(self) -> Params:
        """Marginal variances of the weights that have one."""
        return self.variance()

    # How the posterior moves: by natural gradients, or by gradients of free parameters.

    def seen(self, prior: Prior) -> Prior:
        """A prior over the weights, expressed in the posterior's coordinates."""
        return prior

    def coordinates(self) -> Gaussian:
        """What natural gradients move: a mean, and the precision that divides its gradient."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def whole_precision(self) -> Matrix:
        """The precision in the structure that the curvature is kept in."""
        return self.coordinates().precision

    def with_mean(self, mean: Params) -> Posterior:
        """The posterior with another mean, given in its coordinates."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def with_precision(self, precision: Matrix) -> tuple[Posterior, Turn | None]:
        """The posterior with another precision, and the map from the old coordinates to its own."""
        raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")

    def divisor(self, precision: Matrix) -> Matrix:
        """A damped precision as a matrix that divides vectors in the posterior's coordinates."""
        return precision

    def free(self) -> Free:
        """The tensors that gradient descent changes in place."""
        raise TypeError(f"{type(self).__name__} is not moved by gradient descent.")

    def free_gradients(self, terms: ElboTerms) -> Free:
        """The gradients of `share (E[loss] + kl_weight KL)` in the free parameters."""
        raise TypeError(f"{type(self).__name__} is not moved by gradient descent.")

    def anew(self) -> Posterior:
        """The same tensors in a new object, which keeps nothing computed from the old values."""
        return replace(self)  # type: ignore[type-var]

    def fault(self) -> str | None:
        """What is wrong with the spread after training diverged, in words; None if nothing is."""
        return None

    @cached_property
    def any_tensor(self) -> Tensor:
        """One of the posterior's own tensors."""
        return next(value for _, value in tree.parts(self, Tensor))

    @property
    def device(self) -> torch.device:
        """The device of the posterior's tensors."""
        return self.any_tensor.device

    def state_dict(self) -> Params:
        """All tensors of the posterior, by slash-separated names."""
        return tree.tensors(self)

    def words(self) -> str:
        """The kind of posterior, in a word or two."""
        return type(self).__name__

    def __repr__(self) -> str:
        names = list(self.mean)
        shown = ", ".join(names[:3]) + (f", … {len(names) - 3} more" if len(names) > 3 else "")
        return f"<{type(self).__name__}: {self.num_parameters:,} parameters for {shown}>"


class Family(Part, ABC):
    """A choice of family: makes the first posterior, and says how its posteriors can be moved.

    `stack_obstacle` says in words why the steps of many nets cannot be taken together,
    `replay_obstacle` why a step cannot be replayed as a CUDA graph; None if they can.
    """

    # The structure of the curvature that natural gradients average; None if they move nothing.
    structure: Structure | None = None
    # The curvature per datum before any data are seen. None: the first batch tells, and until then
    # it is 1.
    curvature: float | None = 1.0
    has_scales: bool = False  # Gradient descent learns its spread.
    has_mean: bool = False  # Gradient descent learns at least its mean.
    spreads: bool = True  # Its weights have a variance; False for point estimates.
    takes_precision: bool = True  # Its prior can be a number, the precision of N(0, I / precision).
    independent: bool = False  # Weights are independent Gaussians with a standard deviation each.
    symmetric: bool = True  # Each draw has a mirror image about the mean.
    needs_draws: bool = False  # The loss must be evaluated at draws: the mean is not enough.
    linearisable: bool = False  # A Gaussian whose precision can be multiplied with Jacobians.
    own_coordinates: bool = False  # Gradients are taken in tensors that the weights are made from.
    needs_additive: bool = False  # A gradient is divided among its components, point by point.
    drops: bool = False  # It drops units at random.
    piece_obstacle: str | None = None  # Why the pieces of a batch do not add up to the whole.
    group_obstacle: str | None = None  # Why it cannot hold one group of weights among others.

    @abstractmethod
    def init(self, params: Params, *, weight: float, prior: Prior | float) -> Posterior:
        """The posterior before the first step; `weight` is num_data / temperature."""

    def first_curvature(self, coordinates: Params, weight: float) -> Matrix:
        """The assumed curvature of the whole data set before any of it is seen."""
        if self.structure is None:
            raise TypeError(f"{type(self).__name__} is not moved by natural gradients.")
        curvature = 1.0 if self.curvature is None else self.curvature
        return self.structure.identity(coordinates, weight * curvature)

    @derived
    def looks_first(self) -> bool:
        """Whether the first batch tells how large the initial curvature is."""
        return self.curvature is None

    def usual_temperature(self, num_data: float, params: Params) -> float:
        """The temperature if none is given.

        A posterior that learns the spread of each weight, or of each layer, by itself counts all P
        weights as determined by the data. Then the average variance of its function at N training
        rows is P/N times the noise variance, while that of an exact posterior is never above the
        noise. The temperature N/P corrects this if P is above N; otherwise it is 1. If training
        sees the spread, N counts as a twentieth for classes (`Likelihood.spread_share`).
        """
        size = self.counted(params)
        return min(1.0, num_data / size) if size else 1.0

    def counted(self, params: Params) -> int:
        """How many weights count as determined by the data one by one, regardless of the others."""
        counts = self.structure is not None and self.structure.counts_each
        return vectors.numel(params) if counts else 0

    def looked(self, curvature: float) -> Family:
        """The family with an initial curvature per datum, if it has none of its own."""
        return replace(cast(Any, self), curvature=curvature) if self.looks_first else self

    @abstractmethod
    def prior(self, given: object, params: Params) -> Prior:
        """The prior in the coordinates of this family: from a number, a prior or a posterior.

        None is the default prior.
        """

    def other_form(self) -> Family | None:
        """The family of the same posteriors in another form, which other devices may choose."""
        return None

    def adopted(self, posterior: Posterior) -> tuple[Posterior, Callable[[Params], Params]]:
        """A posterior of the other form in this one, and the map of its vectors."""
        raise TypeError(f"{type(self).__name__} has no other form.")

    def for_model(self, model: nn.Module) -> Family:
        """The same choice for one module, whose layers it may need to know."""
        return self

    @property
    def stack_obstacle(self) -> str | None:
        return f"the family {type(self).__name__}"

    replay_obstacle = stack_obstacle
