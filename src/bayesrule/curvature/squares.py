"""Curvature from gradients: none, the squared batch gradient, squares of single examples, Price."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from bayesrule.curvature._base import Curvature, Here, Problem, plain_gradient
from bayesrule.matrices import Structure
from bayesrule.matrices.diagonal import SquareMatrix
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Local, Params


@dataclass(frozen=True)
class NoCurvature(Curvature):
    """Gradients only."""

    gives_curvature = False
    takes_coordinates = True
    of_weights = True
    from_gradient = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        loss, gradient, outputs = plain_gradient(problem, here.point)
        return Local(loss, gradient, None, problem.statistics(outputs))


@dataclass(frozen=True)
class _OneRow:
    """A single vector as rows, whose square is multiplied by a number."""

    vector: Params
    square: float

    @property
    def names(self) -> Iterable[str]:
        return self.vector

    def only(self, names: tuple[str, ...]) -> _OneRow:
        return _OneRow({name: self.vector[name] for name in names}, self.square)

    @property
    def row(self) -> Params:
        return vectors.scale(self.vector, self.square**0.5)

    def squares(self) -> Params:
        return SquareMatrix(self.vector, self.square).values

    def lazy_squares(self) -> SquareMatrix:
        """The squares, worked out where they are asked for."""
        return SquareMatrix(self.vector, self.square)

    def per_example(self) -> Params:
        return {name: value[None, None] for name, value in self.row.items()}

    def gram(self, weights: Params) -> Tensor:
        return vectors.dot(self.squares(), weights).reshape(1, 1, 1)


@dataclass(frozen=True)
class SquaredGradient(Curvature):
    """`N ĝ²`, the square of the batch-mean gradient: cheap, and what RMSprop and Adam use.

    It falls with the batch size where the squares of single examples would not; Khan & Rue (2023),
    sec. 4.2. With `of_sums` it is `N B ĝ²` for B examples, which does not: where the gradients of
    single examples are independent and zero on average, as they are about the optimum, that is
    what their squares are on average.
    """

    of_sums: bool = False

    additive = False
    of_weights = True
    from_gradient = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        return NoCurvature().local(problem, here)

    def complete(self, derivatives: Derivatives, structure: Structure) -> Derivatives:
        # The square is taken of the whole gradient: after the sum over draws and machines.
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
        # The rows carry the scale, so their products carry its square.
        curvature = here.structure.contract(rows).times_(1.0 / problem.scale)
        statistics = problem.statistics(recording.outputs)
        return Local(loss, rows.completed(gradient), curvature, statistics)


@dataclass(frozen=True)
class Price(Curvature):
    """`E[∇²ℓ] = E[S (θ − m) ∇ℓᵀ]`: the Hessian averaged over q, from gradients at draws alone.

    An estimate may be negative; the rule's retraction keeps the precision positive.
    """

    needs_draws = True
    may_be_negative = True
    from_gradient = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        loss, gradient, outputs = plain_gradient(problem, here.point)
        return Local(loss, gradient, here.point.price(gradient), problem.statistics(outputs))
