"""Curvature at given weights: from gradients, from the model's own vectors, and exact."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Here, Problem, plain_gradient
from bayesrule.matrices import Matrix, Structure
from bayesrule.matrices.diagonal import SquareMatrix
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.network import as_leaves
from bayesrule.types import Derivatives, Local, Params, Rows

# How many rows of the Hessian are computed together.
_ROWS = 64


class _FromGradient(Curvature):
    """Estimates that need only the gradient of a batch."""

    from_gradient = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        loss, gradient, outputs = plain_gradient(problem, here.point)
        return Local(loss, gradient, self._curvature(gradient, here), problem.statistics(outputs))

    def _curvature(self, gradient: Params, here: Here) -> Matrix | None:
        """The curvature that follows from the gradient at one point."""
        return None


@dataclass(frozen=True)
class NoCurvature(_FromGradient):
    """Gradients only."""

    gives_curvature = False
    takes_coordinates = True
    of_weights = True


@dataclass(frozen=True)
class _OneRow(Rows):
    """A single vector as rows; its square is multiplied by a number."""

    vector: Params
    square: float

    @property
    def names(self) -> Iterable[str]:
        return self.vector

    def only(self, names: tuple[str, ...]) -> _OneRow:
        return _OneRow({name: self.vector[name] for name in names}, self.square)

    def squares(self) -> Params:
        return self.lazy_squares().values

    def lazy_squares(self) -> SquareMatrix:
        """The squares, computed when they are first read."""
        return SquareMatrix(self.vector, self.square)

    def per_example(self) -> Params:
        row = vectors.scale(self.vector, self.square**0.5)
        return {name: value[None, None] for name, value in row.items()}

    def gram(self, weights: Params) -> Tensor:
        return vectors.dot(self.squares(), weights).reshape(1, 1, 1)


@dataclass(frozen=True)
class SquaredGradient(_FromGradient):
    """`N ĝ²`, the square of the batch-mean gradient: cheap, and what RMSprop and Adam use.

    It falls with the batch size, unlike the squares of single examples; Khan & Rue (2023), sec.
    4.2. With `of_sums` it is `N B ĝ²` for B examples, which does not fall: if the gradients of
    single examples are independent with mean zero, as near the optimum, it equals their squares on
    average.
    """

    of_sums: bool = False

    additive = False
    of_weights = True

    def complete(self, derivatives: Derivatives, structure: Structure) -> Derivatives:
        # The square of the whole gradient, after the sum over draws and machines.
        factor = (derivatives.count if self.of_sums else 1) / derivatives.weight
        square = structure.contract(_OneRow(derivatives.gradient, factor))
        return dataclasses.replace(derivatives, curvature=square)


@dataclass(frozen=True)
class PerExample(Curvature):
    """`Σ_i g_i g_iᵀ`, squares of the gradients of single examples: the empirical Fisher.

    Where batch norm in training mode couples examples, row i is the gradient through the
    activations of example i, as in Osawa et al. (2019).
    """

    needs_rows = True
    of_weights = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        recording = problem.record(here.point)
        loss, slope = problem.loss(recording.outputs)
        rows, gradient = recording.backward(slope.unsqueeze(0), gradient=True)
        root, squared = problem.root_slope(recording.outputs), rows
        if root is not None:
            squared, _ = recording.backward(root.unsqueeze(0), gradient=True)
        # The rows carry the scale, so their products carry its square.
        curvature = here.structure.contract(squared).times_(1.0 / problem.scale)
        statistics = problem.statistics(recording.outputs)
        return Local(loss, rows.completed(gradient), curvature, statistics)


@dataclass(frozen=True)
class Price(_FromGradient):
    """`E[∇²ℓ] = E[S (θ − m) ∇ℓᵀ]`: the Hessian averaged over q, from gradients at draws alone.

    An estimate may be negative; the rule's retraction keeps the precision positive.
    """

    needs_draws = True
    may_be_negative = True

    def _curvature(self, gradient: Params, here: Here) -> Matrix:
        return here.point.price(gradient)


class _ModelVectors(Curvature):
    """Curvature from vectors that the model itself gives, whatever the targets are.

    It takes examples as independent given the weights, but batch norm in training mode couples
    them. Therefore its mean and variance count as constants, as at inference. They are those of the
    batch, as in the loss, since running averages are far off at the start. The gradient of the loss
    goes through them as usual.
    """

    needs_rows = True
    takes_coordinates = True
    of_weights = True
    stack_obstacle = None

    @abstractmethod
    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        """The vectors that are backpropagated from the outputs, (V, n, *)."""

    def local(self, problem: Problem, here: Here) -> Local:
        recording = problem.record(here.point)
        loss, slope = problem.loss(recording.outputs)
        gradient = recording.gradient(slope)
        vectors = self.vectors(problem, recording.outputs.detach())
        rows, _ = recording.backward(vectors, gradient=False)
        statistics = problem.statistics(recording.outputs)
        curvature = here.structure.contract(rows).times_(problem.scale)
        return Local(loss, gradient, curvature, statistics)


@dataclass(frozen=True)
class Fisher(_ModelVectors):
    """The Fisher information with targets drawn from the model, `samples` for each example.

    Batch norm in training mode has the mean and variance of the batch as constants here.
    """

    samples: int = 1

    asks = ("sample",)

    @derived
    def draws_together(self) -> bool:
        """With several samples, the targets of one draw are all drawn before those of the next."""
        return self.samples == 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"Fisher takes at least one sample, got {self.samples}.")

    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        drawn = (problem.sample(outputs) for _ in range(self.samples))
        scores = [problem.slope(outputs, targets)[1] for targets in drawn]
        return torch.stack([score * self.samples**-0.5 for score in scores])


@dataclass(frozen=True)
class GGN(_ModelVectors):
    """The exact generalised Gauss-Newton matrix `Σ Jᵀ H J`, one backward pass for each output.

    H is the Fisher information of the outputs. For the likelihoods here with fixed noise it is the
    Hessian, except for the heteroscedastic one.
    """

    asks = ("fisher_vectors",)

    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        return problem.fisher_vectors(outputs)


@dataclass(frozen=True)
class Hessian(Curvature):
    """`∇²ℓ` by a second backward pass for each parameter; may be negative away from a minimum."""

    limit: int = 5_000

    twice = True
    may_be_negative = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        leaves, axes = as_leaves(here.point.coordinates), problem.axes
        wanted = list(leaves.values())
        size = sum(math.prod(value.shape[axes:]) for value in wanted)
        if size > self.limit:
            raise ValueError(
                f"The exact Hessian takes a backward pass for each of {size:,} parameters; the "
                f"limit is {self.limit:,}. Use GGN(), Fisher() or Hessian(limit={size})."
            )
        outputs = problem.forward(here.point.weights(leaves))
        loss = problem.nll(outputs, problem.y)
        scaled = loss * problem.scale
        options = {"create_graph": True, "materialize_grads": True}
        slopes = torch.autograd.grad(scaled, wanted, torch.ones_like(scaled), **options)
        flat = torch.cat([vectors.in_rows(g, axes) for g in slopes], dim=axes)
        matrix = _rows(flat, wanted)
        gradient = {k: g.detach() for k, g in zip(leaves, slopes, strict=True)}
        curvature = here.structure.project(0.5 * (matrix + matrix.mT), here.point.coordinates)
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))


def _rows(gradient: Tensor, wanted: list[Tensor]) -> Tensor:
    """The derivative of a gradient (P,) in the parameters, (P, P), computed some rows at a time.

    For stacked nets, (num, P), it is (num, P, P).
    """
    (*nets, size), blocks = gradient.shape, []
    if not gradient.requires_grad:
        return gradient.new_zeros(*nets, size, size)
    options = {"retain_graph": True, "is_grads_batched": True, "materialize_grads": True}
    for units in torch.eye(size, dtype=gradient.dtype, device=gradient.device).split(_ROWS):
        chosen = units.reshape(-1, *[1] * len(nets), size).expand(-1, *gradient.shape)
        parts = torch.autograd.grad(gradient, wanted, chosen, **options)
        # A weight that the gradient does not depend on gets its zeros only once.
        rows = (g.expand(len(units), *w.shape) for g, w in zip(parts, wanted, strict=True))
        blocks.append(torch.cat([vectors.in_rows(row, 1 + len(nets)) for row in rows], dim=-1))
    return torch.cat(blocks).movedim(0, -2)
