"""The contract of every estimate of second-order information, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from bayesrule.curvature.rows import Recording
from bayesrule.expectations import Expectation, Look
from bayesrule.likelihoods import Conditioned, Likelihood
from bayesrule.likelihoods._uncertain import as_uncertain_as, counted, observed
from bayesrule.likelihoods._weighted import WeightedTensor, rooted, split, times
from bayesrule.matrices import Structure
from bayesrule.moments import Activations, GaussianTensor, Propagation
from bayesrule.posteriors import Point, Posterior
from bayesrule.tensors import vectors
from bayesrule.tensors.network import Inputs, Network, as_leaves, copies, num_examples, take
from bayesrule.tensors.stand_in import gradients
from bayesrule.tensors.step_randomness import Streams
from bayesrule.tensors.unfit import check_outputs
from bayesrule.types import Derivatives, Local, Params, Part, State


@dataclass(frozen=True)
class Problem:
    """All that a step looks at: the network, the likelihood, the batch, randomness, the scale.

    - `weight`: num_data / temperature, what the data count for all together.
    - `count`: how many examples the batch has, over all ranks; `num_points` the points at which
      each is looked at. Derivatives are of `scale` times the negative log-likelihood.
    - `targets`, `draws`: where targets and weights are drawn from.
    - `module_randomness`: makes the context in which the module draws (dropout).
    - `checked`: numbers may be looked at, to say what is wrong with them.
    - `rates`: the rule's numbers for this step, where they are not those of the step's number.
    - `pieces`: in how many pieces the batch is looked at, one after another (`in_pieces`).

    `axes` is how many axes come before those of a weight: one where nets are stacked.
    """

    axes: ClassVar[int] = 0

    network: Network
    likelihood: Likelihood
    likelihood_state: Params
    buffers: Params
    x: Inputs
    y: Tensor
    targets: Any
    draws: Any = None
    weight: Any = 1.0
    count: Any = 1
    num_points: int = 1
    temperature: Any = 1.0
    training: bool = True
    checked: bool = True
    module_randomness: Callable[[], AbstractContextManager[None]] = nullcontext
    rates: Any = None
    pieces: int = 1

    def __post_init__(self) -> None:
        if isinstance(split(self.y)[0], GaussianTensor) and not self.likelihood.uncertain_targets:
            raise TypeError(
                f"{type(self.likelihood).__name__} takes targets that are known, got uncertain "
                "ones; targets with a variance of their own go with GaussianLikelihood."
            )

    @cached_property
    def scale(self) -> Any:
        """What one example of the batch stands for; a number, or one for each net of a stack."""
        return self.weight / (self.count * self.num_points)

    @property
    def num_data(self) -> Any:
        """How many data there are; a number, or one for each net of a stack."""
        return self.weight * self.temperature

    def points(
        self, expectation: Expectation, posterior: Posterior, wanted: Wanted
    ) -> Iterator[tuple[Problem, Point]]:
        """The points of an expectation, each with the problem as it is seen from there."""
        tracked = wanted.curvature.needs_draws or posterior.must_track
        points = expectation.points(posterior, self.draws, tracked=tracked)
        return ((self, point) for point in points)

    def in_pieces(self, *, same_draws: bool = True) -> Iterator[Problem]:
        """The batch in pieces, which count as parts of the whole.

        With `same_draws` each piece draws the same weights, else they draw one after another.
        """
        size = -(-num_examples(self.x) // self.pieces)
        begun = self.draws.get_state() if same_draws and self.draws is not None else None
        for first in range(0, num_examples(self.x), size):
            rows = slice(first, first + size)
            if begun is not None:
                self.draws.set_state(begun)
            yield replace(self, x=take(self.x, rows), y=self.y[rows], pieces=1)

    def forward(self, params: Params) -> Tensor:
        """The outputs at the given weights."""
        outputs = self.network(params, self.buffers, self.x, training=self.training)
        return check_outputs(outputs, num_examples(self.x))

    def loss(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of the batch, and the gradient of it, scaled, in outputs."""
        loss, slope = self.slope(outputs, self.y)
        return loss, slope * vectors.over(self.scale, slope)

    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of targets, and its gradient in the outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.nll(leaf, targets)
        (slope,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
        return loss.detach(), slope

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`−Σ log p(y | f)`."""
        values, weight = split(targets)
        each = self.likelihood.log_prob(outputs, values, self.likelihood_state)
        return -times(each, weight).sum()

    def root_slope(self, outputs: Tensor) -> Tensor | None:
        """The slope with roots of the examples' weights, so that squares count `w g²`; or None."""
        if not isinstance(self.y, WeightedTensor):
            return None
        _, slope = self.slope(outputs, rooted(self.y, split(self.y)[0]))
        return slope * vectors.over(self.scale, slope)

    @torch.no_grad()
    def nll_at(self, expectation: Expectation, posterior: Posterior) -> Tensor:
        """`−Σ log p(y | f)`, summed over the points of an expectation as well."""
        tracked = posterior.must_track
        points = expectation.points(posterior, self.draws, tracked=tracked)
        each = [self.nll(self.forward(point.params), self.y) for point in points]
        return torch.stack(each).sum(0)

    def again(self, state: State, streams: Streams) -> Self:
        """The same batch, looked at from another state."""
        targets, draws, module = streams
        return replace(
            self,
            likelihood_state=state.likelihood,
            buffers=copies(state.buffers),
            targets=targets,
            draws=draws,
            module_randomness=module,
        )

    def sample(self, outputs: Tensor) -> Tensor:
        """Targets drawn from the model."""
        _, state = observed(self.y, self.likelihood_state)
        return as_uncertain_as(self.y, self.likelihood.sample(outputs, state, self.targets))

    def fisher_vectors(self, outputs: Tensor) -> Tensor:
        """Vectors (V, n, *) whose outer products sum to the Fisher information of the outputs."""
        _, state = observed(self.y, self.likelihood_state)
        weight = split(self.y)[1]
        found = self.likelihood.fisher_vectors(outputs, state)
        return found if weight is None else times(found, weight.sqrt(), axis=1)

    def record(self, point: Point) -> Recording:
        """A forward pass with what gradients of single examples need."""
        return Recording(self, point)

    def statistics(self, outputs: Tensor) -> Params:
        """What the likelihood learns from, scaled."""
        given = outputs.detach(), *counted(self.y, self.likelihood_state)
        return vectors.scale(self.likelihood.expected_statistics(*given), self.scale)

    def learned(self, statistics: Params) -> Params:
        """The likelihood's own state after the batch.

        What it learns, such as the noise, counts every datum once, whatever the temperature is.
        """
        found = {name: value * self.temperature for name, value in statistics.items()}
        return self.likelihood.update(self.likelihood_state, found, self.num_data)

    def derivatives(self, local: Local) -> Derivatives:
        """Estimates over the whole data set from sums over the batch."""
        loss = local.loss * (self.scale * self.temperature)
        sums = local.gradient, local.curvature, self.weight, self.count, local.average
        return Derivatives(loss, *sums, self.temperature, self.likelihood.least_loss)

    def innovations(self, mean: Params, variance: Params, activations: Activations) -> Innovation:
        """What the batch says of weights N(mean, variance), in closed form.

        It is arithmetic on tensors alone, which can be mapped over nets and compiled.
        """
        propagation = Propagation(self.network, activations)
        belief = mean, variance, self.buffers
        outputs = propagation.forward(*belief, self.x, training=self.training)
        given = outputs.centre, outputs.variance, *counted(self.y, self.likelihood_state)
        found = weighed(self.likelihood.condition(*given), split(self.y)[1])
        loss, weight = -found.log_prob.sum(), -1.0 / self.temperature
        # An example without a target has no part in the loss but does have innovations.
        sound = (loss + found.delta.sum()).isfinite()
        delta, eta = propagation.innovations(outputs, found.delta * weight, found.eta * weight)
        return Innovation(loss, sound, delta, eta, found.statistics)

    def explain(
        self, mean: Params, variance: Params, activations: Activations, sound: Tensor
    ) -> None:
        """Says why what a batch says is not finite."""
        Propagation(self.network, activations).explain(
            mean, variance, self.buffers, self.x, self.y, training=self.training
        )


def weighed(found: Conditioned, weight: Tensor | None) -> Conditioned:
    """What targets say, each example as often as it counts; statistics are counted already."""
    if weight is None:
        return found
    delta, eta = times(found.delta, weight), times(found.eta, weight)
    return replace(found, delta=delta, eta=eta, log_prob=times(found.log_prob, weight))


class Innovation(NamedTuple):
    """Sums over a batch: its negative log-evidence, and `−δ` and `−η` of each weight.

    `sound` says whether all of it is finite; `statistics` are what the likelihood learns from.
    """

    loss: Tensor
    sound: Tensor
    delta: Params
    eta: Params
    statistics: Params


class Wanted(NamedTuple):
    """Which curvature is to be estimated, and in which structure."""

    curvature: Curvature
    structure: Structure


class Here(NamedTuple):
    """Where a loss is looked at: a point of a belief, and the structure that curvature is for."""

    point: Point
    structure: Structure
    posterior: Posterior


class Curvature(Part, ABC):
    """Which second-order information of the loss is estimated: what it needs, what it gives."""

    look: Look = Look.WEIGHTS  # What it must be shown: the loss at weights, in layers, or moments.
    needs_draws: bool = False  # It cannot be taken at the mean.
    at_mean: bool = False  # It can be taken nowhere else.
    gives_curvature: bool = True  # False where there are gradients only.
    may_be_negative: bool = False
    additive: bool = True  # `local` alone gives it, summed over examples: batches can be added up.
    needs_rows: bool = False  # It looks at the gradients of single examples.
    takes_coordinates: bool = False  # It works where weights are made from other coordinates.
    from_gradient: bool = False  # The gradient of a batch is all that it needs of the loss.
    diagonal_only: bool = False  # One number for each weight, whatever structure is asked for.
    slopes_only: bool = False  # It gives slopes in standard deviations, for rules that move those.
    whole_data: bool = True  # It is scaled to the whole data; False: a batch stands for itself.
    of_weights: bool = False  # It looks at weights and outputs alone, not at how draws were made.
    twice: bool = False  # It differentiates gradients, which torch cannot do for every layer.
    draws_together: bool = True  # Several draws at once give what one after another gives.
    asks: tuple[str, ...] = ()  # The abilities of a likelihood that it needs.
    piece_obstacle: str | None = None  # Why those of pieces of a batch do not add up to its own.

    @abstractmethod
    def local(self, problem: Problem, here: Here) -> Local:
        """Sums over the batch at one point, times the problem's scale."""

    def complete(self, derivatives: Derivatives, structure: Structure) -> Derivatives:
        """What can only be known once everything is summed over points and machines."""
        return derivatives

    @property
    def stack_obstacle(self) -> str | None:
        """Why many nets cannot be looked at together, in words."""
        return f"the curvature {self!r}"


def plain_gradient(problem: Problem, point: Point) -> tuple[Tensor, Params, Tensor]:
    """Loss, gradient in the point's coordinates, and outputs: one forward and one backward pass."""
    leaves = as_leaves(point.coordinates)
    weights = point.weights(leaves)
    outputs = problem.forward(weights)
    loss = problem.nll(outputs, problem.y)
    scaled = loss * problem.scale
    # One loss, or one of each net: no net has a part in the loss of another.
    gradient = gradients(scaled, leaves, weights, torch.ones_like(scaled))
    return loss.detach(), vectors.matched(vectors.apart(gradient), point.coordinates), outputs
