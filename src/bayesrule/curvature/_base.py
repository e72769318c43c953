"""The contract of every estimate of second-order information, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from bayesrule.curvature.rows import Recording
from bayesrule.expectations import Point
from bayesrule.expectations.rotated_weight import pulled, turned
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Matrix, Structure
from bayesrule.matrices.rotation import Rotation
from bayesrule.tensors import vectors
from bayesrule.tensors.network import Inputs, Network
from bayesrule.types import Derivatives, Params


@dataclass(frozen=True)
class Local:
    """Sums over one batch at one point.

    `loss` is the negative log-likelihood as it is; gradient, curvature and the noise's statistics
    are those of `scale` times it. `weights`, where a rule asks for them, are this point's share of
    the mean of all points.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    statistics: Params
    weights: Params | None = None

    def plus(self, other: Local) -> Local:
        """The sums of both."""
        curvature = self.curvature
        if curvature is not None and other.curvature is not None:
            curvature = curvature.plus(other.curvature)
        weights = self.weights
        if weights is not None and other.weights is not None:
            weights = vectors.add(weights, other.weights)
        statistics = {k: v + other.statistics[k] for k, v in self.statistics.items()}
        gradient = vectors.add(self.gradient, other.gradient)
        return Local(self.loss + other.loss, gradient, curvature, statistics, weights)


@dataclass(frozen=True)
class Problem:
    """All that an estimate looks at: the network, the likelihood, the batch, randomness.

    `scale` is what one example of the batch stands for: derivatives are of `scale · nll`. It holds
    the `temperature` already, which what is not scaled to the whole data divides by itself.
    `axes` is how many axes come before those of a weight: one where nets are stacked.
    """

    axes: ClassVar[int] = 0

    network: Network
    likelihood: Likelihood
    noise: Params
    buffers: Params
    x: Inputs
    y: Tensor
    generator: Generator
    training: bool = True
    scale: float = 1.0
    temperature: float = 1.0

    def forward(self, params: Params) -> Tensor:
        """The outputs at the given weights."""
        return self.network(params, self.buffers, self.x, training=self.training)

    def loss(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of the batch, and the gradient of it, scaled, in outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.nll(leaf, self.y)
        (slope,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), slope * self.scale

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`−Σ log p(y | f)`."""
        return -self.likelihood.log_prob(outputs, targets, self.noise).sum()

    def sample(self, outputs: Tensor) -> Tensor:
        """Targets drawn from the model."""
        return self.likelihood.sample(outputs, self.noise, self.generator)

    def fisher_vectors(self, outputs: Tensor) -> Tensor:
        """Vectors (V, n, *) whose outer products sum to the Fisher information of the outputs."""
        return self.likelihood.fisher_vectors(outputs, self.noise)

    def record(self, params: Params, rotation: Rotation | None = None) -> Recording:
        """A forward pass with what gradients of single examples need."""
        return Recording(self, params, rotation)

    def statistics(self, outputs: Tensor) -> Params:
        """What the likelihood learns from, scaled."""
        found = self.likelihood.statistics(outputs.detach(), self.y)
        return {name: value * self.scale for name, value in found.items()}


class Curvature(ABC):
    """Which second-order information of the loss is estimated, and how.

    - `needs_draws`: it cannot be taken at the mean.
    - `gives_curvature`: False where there are gradients only.
    - `additive`: `local` alone gives it, summed over examples, so batches can be added up.
    - `needs_rows`: it looks at the gradients of single examples.
    - `takes_rotations`: weights may be given as seen in other bases.
    """

    needs_draws: bool = False
    gives_curvature: bool = True
    may_be_negative: bool = False
    additive: bool = True
    needs_rows: bool = False
    takes_rotations: bool = False

    @abstractmethod
    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        """Sums over the batch at one point, times the problem's scale."""

    def complete(self, derivatives: Derivatives, structure: Structure) -> Derivatives:
        """What can only be known once everything is summed over points and machines."""
        return derivatives


def plain_gradient(
    problem: Problem, params: Params, rotation: Rotation | None = None
) -> tuple[Tensor, Params, Tensor]:
    """Loss, gradient and outputs at the given weights: one forward and one backward pass.

    With a rotation the weights are given as seen in its bases, and so is the gradient.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    weights = leaves if rotation is None else turned(rotation, leaves)
    outputs = problem.forward(weights)
    loss = problem.nll(outputs, problem.y)
    scaled = loss * problem.scale
    # One loss, or one of each net: no net has a part in the loss of another.
    found = pulled(scaled, torch.ones_like(scaled), leaves, weights)
    return loss.detach(), vectors.apart(found), outputs
