"""The contract of every estimate of the curvature, and what all of them share."""

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
    """All that derivatives of the loss depend on: network, likelihood, batch, randomness and scale.

    - `weight`: num_data / temperature, the number of data that the batch stands for.
    - `count`: the number of examples in the batch, over all ranks; `num_points`: the number of
      points at which each is evaluated. Derivatives are those of `scale` times the negative
      log-likelihood.
    - `targets`, `draws`: the generators for targets and for weights.
    - `module_randomness`: makes the context in which the module draws (dropout).
    - `checked`: numbers may be read, to report what is wrong with them.
    - `rates`: the rule's numbers for this step, if they are not those of the step's index.
    - `pieces`: in how many pieces the batch is evaluated, one after another (`in_pieces`).

    `axes` is the number of axes before those of a weight: one if nets are stacked.
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
        """How many data one example stands for; a number, or one for each net of a stack."""
        return self.weight / (self.count * self.num_points)

    @property
    def num_data(self) -> Any:
        """The size of the data set; a number, or one for each net of a stack."""
        return self.weight * self.temperature

    def points(
        self, expectation: Expectation, posterior: Posterior, wanted: Wanted
    ) -> Iterator[tuple[Problem, Point]]:
        """The points of an expectation, each with the problem that applies there."""
        tracked = wanted.curvature.needs_draws or posterior.must_track
        points = expectation.points(posterior, self.draws, tracked=tracked)
        return ((self, point) for point in points)

    def in_pieces(self, *, same_draws: bool = True) -> Iterator[Problem]:
        """The batch in pieces, which each count as a part of the whole.

        With `same_draws` all pieces see the same weight draws, else each piece draws its own.
        """
        size = -(-num_examples(self.x) // self.pieces)
        start = self.draws.get_state() if same_draws and self.draws is not None else None
        for first in range(0, num_examples(self.x), size):
            rows = slice(first, first + size)
            if start is not None:
                self.draws.set_state(start)
            yield replace(self, x=take(self.x, rows), y=self.y[rows], pieces=1)

    def forward(self, params: Params) -> Tensor:
        """The outputs at the given weights."""
        outputs = self.network(params, self.buffers, self.x, training=self.training)
        return check_outputs(outputs, num_examples(self.x))

    def loss(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The batch's negative log-likelihood, and its scaled gradient in the outputs."""
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
        log_probs = self.likelihood.log_prob(outputs, values, self.likelihood_state)
        return -times(log_probs, weight).sum()

    def root_slope(self, outputs: Tensor) -> Tensor | None:
        """The slope times the roots of the examples' weights, whose squares are `w g²`; or None."""
        if not isinstance(self.y, WeightedTensor):
            return None
        _, slope = self.slope(outputs, rooted(self.y, split(self.y)[0]))
        return slope * vectors.over(self.scale, slope)

    @torch.no_grad()
    def nll_at(self, expectation: Expectation, posterior: Posterior) -> Tensor:
        """`−Σ log p(y | f)`, summed over examples and over the points of an expectation."""
        tracked = posterior.must_track
        points = expectation.points(posterior, self.draws, tracked=tracked)
        losses = [self.nll(self.forward(point.params), self.y) for point in points]
        return torch.stack(losses).sum(0)

    def again(self, state: State, streams: Streams) -> Self:
        """The same batch, with another state."""
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
        roots = self.likelihood.fisher_vectors(outputs, state)
        return roots if weight is None else times(roots, weight.sqrt(), axis=1)

    def record(self, point: Point) -> Recording:
        """A forward pass that keeps what per-example gradients need."""
        return Recording(self, point)

    def statistics(self, outputs: Tensor) -> Params:
        """The scaled statistics that the likelihood learns from."""
        args = outputs.detach(), *counted(self.y, self.likelihood_state)
        return vectors.scale(self.likelihood.expected_statistics(*args), self.scale)

    def learned(self, statistics: Params) -> Params:
        """The likelihood's own state after the batch.

        What it learns, such as the noise, counts every datum once, whatever the temperature.
        """
        untempered = {name: value * self.temperature for name, value in statistics.items()}
        return self.likelihood.update(self.likelihood_state, untempered, self.num_data)

    def derivatives(self, local: Local) -> Derivatives:
        """Estimates over the whole data set from sums over the batch."""
        loss = local.loss * (self.scale * self.temperature)
        sums = local.gradient, local.curvature, self.weight, self.count, local.average
        return Derivatives(loss, *sums, self.temperature, self.likelihood.least_loss)

    def innovations(self, mean: Params, variance: Params, activations: Activations) -> Innovation:
        """What the batch tells about weights N(mean, variance), in closed form.

        This is arithmetic on tensors alone, which can be mapped over nets and compiled.
        """
        propagation = Propagation(self.network, activations)
        outputs = propagation.forward(mean, variance, self.buffers, self.x, training=self.training)
        args = outputs.centre, outputs.variance, *counted(self.y, self.likelihood_state)
        of_outputs = weighed(self.likelihood.condition(*args), split(self.y)[1])
        loss, weight = -of_outputs.log_prob.sum(), -1.0 / self.temperature
        # An example without a target is not part of the loss, but its innovations are summed.
        sound = (loss + of_outputs.delta.sum()).isfinite()
        of_weights = of_outputs.delta * weight, of_outputs.eta * weight
        delta, eta = propagation.innovations(outputs, *of_weights)
        return Innovation(loss, sound, delta, eta, of_outputs.statistics)

    def explain(
        self, mean: Params, variance: Params, activations: Activations, sound: Tensor
    ) -> None:
        """Raises an error that says why the innovations of the batch are not finite."""
        Propagation(self.network, activations).explain(
            mean, variance, self.buffers, self.x, self.y, training=self.training
        )


def weighed(innovations: Conditioned, weight: Tensor | None) -> Conditioned:
    """Innovations, multiplied by the examples' weights; statistics are weighted already."""
    if weight is None:
        return innovations
    delta, eta = times(innovations.delta, weight), times(innovations.eta, weight)
    log_prob = times(innovations.log_prob, weight)
    return replace(innovations, delta=delta, eta=eta, log_prob=log_prob)


class Innovation(NamedTuple):
    """Sums over a batch: its negative log-evidence, and `−δ` and `−η` of each weight.

    `sound` tells whether all of it is finite; `statistics` are what the likelihood learns from.
    """

    loss: Tensor
    sound: Tensor
    delta: Params
    eta: Params
    statistics: Params


class Wanted(NamedTuple):
    """The curvature to be estimated, and its structure."""

    curvature: Curvature
    structure: Structure


class Here(NamedTuple):
    """Where a loss is evaluated: a point of a posterior, and the structure of the curvature."""

    point: Point
    structure: Structure
    posterior: Posterior


class Curvature(Part, ABC):
    """An estimate of the curvature of the loss: what it needs, and what it gives."""

    look: Look = Look.WEIGHTS  # What it needs to see: the loss at weights, in layers, or moments.
    needs_draws: bool = False  # It cannot be taken at the mean.
    at_mean: bool = False  # It can only be taken at the mean.
    gives_curvature: bool = True  # False: it gives gradients only.
    may_be_negative: bool = False
    additive: bool = True  # `local` gives all of it as sums over examples: batches add up.
    needs_rows: bool = False  # It needs the gradients of single examples.
    takes_coordinates: bool = False  # It works where weights are made from other coordinates.
    from_gradient: bool = False  # It needs only the gradient of the batch.
    diagonal_only: bool = False  # It gives one number for each weight, whatever the structure.
    slopes_only: bool = False  # It gives slopes in standard deviations, for rules that move these.
    whole_data: bool = True  # It is scaled to the whole data; False: a batch stands for itself.
    of_weights: bool = False  # It depends on weights and outputs alone, not on how draws were made.
    twice: bool = False  # It differentiates gradients, which torch cannot do for every layer.
    draws_together: bool = True  # Several draws at once give the same as one after another.
    asks: tuple[str, ...] = ()  # The abilities of a likelihood that it needs.
    piece_obstacle: str | None = None  # Why the pieces of a batch do not add up to the whole.

    @abstractmethod
    def local(self, problem: Problem, here: Here) -> Local:
        """Sums over the batch at one point, times the problem's scale."""

    def complete(self, derivatives: Derivatives, structure: Structure) -> Derivatives:
        """Adds what can only be computed from the sums over all points and ranks."""
        return derivatives

    @property
    def stack_obstacle(self) -> str | None:
        """Why the derivatives of many nets cannot be taken together, in words; None if they can."""
        return f"the curvature {self!r}"


def plain_gradient(problem: Problem, point: Point) -> tuple[Tensor, Params, Tensor]:
    """Loss, gradient in the point's coordinates, and outputs: one forward and one backward pass."""
    leaves = as_leaves(point.coordinates)
    weights = point.weights(leaves)
    outputs = problem.forward(weights)
    loss = problem.nll(outputs, problem.y)
    scaled = loss * problem.scale
    # One loss, or one for each net: the losses of other nets have no gradient in a net's weights.
    gradient = gradients(scaled, leaves, weights, torch.ones_like(scaled))
    return loss.detach(), vectors.matched(vectors.apart(gradient), point.coordinates), outputs
