"""The expected loss to second order around the mean, and its gradient: Variational Laplace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import vectors
from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.matrices import DiagonalMatrix, Matrix, Structure
from bayesrule.types import Params


@dataclass(frozen=True)
class SecondOrder(Curvature):
    """`E_q[ℓ] ≈ ℓ(m) + ½ Σ σ² F(m)`: the loss at the mean, and a price on sharp directions.

    F is the diagonal of the Fisher information, `E[g̃²]` with g̃ the gradient of the batch's loss at
    targets drawn from the model: one backward pass, and one more through it, `H̃ (σ² ∘ g̃)`, for
    what the price itself says of the mean. Unlu & Aitchison (2021), eq. 30 (there the KL is
    misprinted).

    The drawn targets are held fixed where the price is differentiated. For real-valued targets of
    fixed noise that is unbiased. For classes it leaves out how the model's own probabilities move
    with the mean; for a linear softmax model the price then has no gradient at all, on average.
    `exact=True` enumerates the outputs instead (`Σ Jᵀ H J`, as many rows as examples times outputs)
    and differentiates all of it: for small nets, and to judge the other by.

    `difference` takes `H̃ v`, `v = σ² ∘ g̃`, as a difference of gradients, `[g̃(m + εv) − g̃(m)] / ε`,
    with `ε‖v‖ = difference ‖m‖` and a random sign of ε, which cancels the next order on average. On
    a GPU, where second derivatives of normalising layers are slow, it takes a third of the time. It
    looks at the net twice, so a net with dropout is refused.
    """

    exact: bool = False
    difference: float | None = None

    def __post_init__(self) -> None:
        if self.difference is not None and not 0 < self.difference < 1:
            raise ValueError(f"difference is a share between 0 and 1, got {self.difference}.")
        if self.exact and self.difference is not None:
            raise ValueError("exact=True differentiates everything; give no difference with it.")

    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        if self.difference is not None:
            return self._by_difference(problem, point.params, precision, self.difference)
        leaves = _leaves(point.params)
        outputs = problem.forward(leaves)
        loss = problem.nll(outputs, problem.y)
        variance = precision.inverse_diagonal()
        sharp = {name: leaves[name] for name in variance}
        rows = self._rows(problem, outputs, list(sharp.values()))
        squares = [self._sum_of_squares(row.detach()) * problem.scale for row in rows]
        # The price is Σ σ² r² / 2, so its gradient goes back through each row r as σ² r; a row that
        # is the same at all weights, such as the last bias of a linear model, has none.
        moving = [
            (row, row.detach() * (problem.scale * v))
            for row, v in zip(rows, variance.values(), strict=True)
            if row.requires_grad
        ]
        found = torch.autograd.grad(
            [loss, *(row for row, _ in moving)],
            list(leaves.values()),
            [torch.full_like(loss, problem.scale), *(weight for _, weight in moving)],
            materialize_grads=True,
        )
        gradient = vectors.apart(dict(zip(leaves, found, strict=True)))
        curvature = DiagonalMatrix(dict(zip(sharp, squares, strict=True)))
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))

    def _by_difference(
        self, problem: Problem, mean: Params, precision: Matrix, size: float
    ) -> Local:
        _refuse_dropout(problem)
        leaves = _leaves(mean)
        # What the second look does to the buffers is forgotten.
        again = replace(problem, buffers={k: v.clone() for k, v in problem.buffers.items()})
        outputs = problem.forward(leaves)
        targets = problem.likelihood.sample(outputs.detach(), problem.noise, problem.generator)
        loss = problem.nll(outputs, problem.y)
        score = _gradient(problem.nll(outputs, targets), leaves, retain_graph=True)
        gradient = _gradient(loss * problem.scale, leaves)
        variance = precision.inverse_diagonal()
        direction = {k: v * score[k] for k, v in variance.items()}
        sign = torch.empty((), device=outputs.device).uniform_(
            -1.0, 1.0, generator=problem.generator
        )
        length = torch.sqrt(vectors.dot(mean, mean) / vectors.dot(direction, direction))
        step = size * length.nan_to_num(0.0, 0.0, 0.0) * sign.sign().to(length.dtype)
        moved = {k: v + step * direction[k] if k in direction else v for k, v in mean.items()}
        leaves = _leaves(moved)
        other = _gradient(again.nll(again.forward(leaves), targets), leaves)
        share = torch.where(step == 0, 0.0, problem.scale / step)
        gradient = {k: v + share * (other[k] - score[k]) for k, v in gradient.items()}
        squares = {k: score[k].square() * problem.scale for k in variance}
        return Local(loss.detach(), gradient, DiagonalMatrix(squares), problem.statistics(outputs))

    def _sum_of_squares(self, row: Tensor) -> Tensor:
        return row.square().sum(0) if self.exact else row.square()

    def _rows(self, problem: Problem, outputs: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        """Gradients whose squares are F: of drawn targets, or (rows, *shape) of all outputs."""
        options: dict[str, Any] = {"create_graph": True, "materialize_grads": True}
        if self.exact:
            given = _each_example(problem.likelihood.fisher_vectors(outputs, problem.noise))
            return torch.autograd.grad(outputs, leaves, given, is_grads_batched=True, **options)
        targets = problem.likelihood.sample(outputs.detach(), problem.noise, problem.generator)
        return torch.autograd.grad(problem.nll(outputs, targets), leaves, **options)


def _leaves(params: Params) -> Params:
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def _gradient(value: Tensor, leaves: Params, *, retain_graph: bool = False) -> Params:
    given = list(leaves.values())
    found = torch.autograd.grad(value, given, retain_graph=retain_graph, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _refuse_dropout(problem: Problem) -> None:
    for name, part in problem.network.model.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and part.training:
            raise ValueError(
                f"{name!r} ({type(part).__name__}) is random, and a difference of gradients looks "
                "at the net twice; use SecondOrder() without difference, or take it out."
            )


def _each_example(roots: Tensor) -> Tensor:
    """Vectors (V, n, *) with the examples apart, (V n, n, *)."""
    num = roots.shape[1]
    eye = torch.eye(num, dtype=roots.dtype, device=roots.device)
    eye = eye.reshape(num, num, *[1] * (roots.ndim - 2))
    return (roots.unsqueeze(1) * eye).flatten(0, 1)
