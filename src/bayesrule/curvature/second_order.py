"""The expected loss to second order around the mean, and its gradient: Variational Laplace."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import vectors
from bayesrule.curvature._base import Curvature, Local, Problem, plain_gradient
from bayesrule.expectations import Point
from bayesrule.matrices import DiagonalMatrix, Matrix, Structure
from bayesrule.network import num_examples, take
from bayesrule.types import Params
from bayesrule.vectors import over


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
    looks at the net twice, so a net with dropout is refused. Under `torch.autocast` it is taken in
    the precision of the weights all the same.

    With `share` below 1 the price is taken from so much of each batch, its first examples, which
    are taken to be in random order. A square of a sum over many examples is no less noisy than one
    over few, so little is lost: a quarter of the batch makes a step cost half as much. Batch norm
    then sees a smaller batch where the price is taken.
    """

    exact: bool = False
    difference: float | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is more than 0 and at most 1, got {self.share}.")
        if self.difference is not None and not 0 < self.difference < 1:
            raise ValueError(f"difference is a share between 0 and 1, got {self.difference}.")
        if self.exact and self.difference is not None:
            raise ValueError("exact=True differentiates everything; give no difference with it.")

    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        num = num_examples(problem.x)
        some = math.ceil(self.share * num)
        if some == num:
            return self._priced(problem, point.params, precision)
        loss, gradient, outputs = plain_gradient(problem, point.params)
        first = slice(0, some)
        part = replace(
            problem,
            x=take(problem.x, first),
            y=problem.y[first],
            # What this look does to the buffers is forgotten.
            buffers={k: v.clone() for k, v in problem.buffers.items()},
            scale=problem.scale * num / some,
        )
        priced = self._priced(part, point.params, precision, alone=True)
        total = vectors.add_(gradient, priced.gradient)
        return Local(loss, total, priced.curvature, problem.statistics(outputs))

    def _priced(
        self, problem: Problem, mean: Params, precision: Matrix, *, alone: bool = False
    ) -> Local:
        """Loss and price together, or the price `alone`."""
        if self.difference is not None:
            # Of two gradients rounded to a few digits nothing would be left.
            with torch.autocast(_device(mean).type, enabled=False):
                return self._by_difference(problem, mean, precision, self.difference, alone=alone)
        leaves = _leaves(mean)
        outputs = problem.forward(leaves)
        loss = problem.nll(outputs, problem.y)
        variance = precision.inverse_diagonal()
        sharp = {name: leaves[name] for name in variance}
        rows = self._rows(problem, outputs, list(sharp.values()))
        scale = problem.scale
        squares = [self._sum_of_squares(row.detach()) for row in rows]
        squares = [square * over(scale, square) for square in squares]
        # The price is Σ σ² r² / 2, so its gradient goes back through each row r as σ² r; a row that
        # is the same at all weights, such as the last bias of a linear model, has none.
        moving = [
            (row, row.detach() * (over(scale, v) * v))
            for row, v in zip(rows, variance.values(), strict=True)
            if row.requires_grad
        ]
        found = torch.autograd.grad(
            [loss, *(row for row, _ in moving)],
            list(leaves.values()),
            [torch.zeros_like(loss) + (0.0 if alone else scale), *(w for _, w in moving)],
            materialize_grads=True,
        )
        gradient = vectors.apart(dict(zip(leaves, found, strict=True)))
        curvature = DiagonalMatrix(dict(zip(sharp, squares, strict=True)))
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))

    def _by_difference(
        self, problem: Problem, mean: Params, precision: Matrix, size: float, *, alone: bool
    ) -> Local:
        _refuse_dropout(problem)
        leaves = _leaves(mean)
        # What the second look does to the buffers is forgotten.
        again = replace(problem, buffers={k: v.clone() for k, v in problem.buffers.items()})
        outputs = problem.forward(leaves)
        targets = problem.likelihood.sample(outputs.detach(), problem.noise, problem.generator)
        loss = problem.nll(outputs, problem.y)
        score = _gradient(problem.nll(outputs, targets), leaves, retain_graph=not alone)
        variance = precision.inverse_diagonal()
        direction = {k: v * score[k] for k, v in variance.items()}
        length = torch.sqrt(vectors.dot(mean, mean) / vectors.dot(direction, direction))
        sign = torch.empty_like(length).uniform_(-1.0, 1.0, generator=problem.generator).sign()
        step = size * sign * length.nan_to_num(0.0, 0.0, 0.0)
        moved = {k: v + step * direction[k] if k in direction else v for k, v in mean.items()}
        other = _leaves(moved)
        other = _gradient(again.nll(again.forward(other), targets), other)
        weight = torch.where(step == 0, 0.0, problem.scale / step)
        gradient = vectors.scale_(vectors.add(other, score, alpha=-1.0), weight)
        if not alone:
            vectors.add_(gradient, _gradient(loss * problem.scale, leaves))
        squares = {k: score[k].square() * problem.scale for k in variance}
        return Local(loss.detach(), gradient, DiagonalMatrix(squares), problem.statistics(outputs))

    def _sum_of_squares(self, row: Tensor) -> Tensor:
        return row.square().sum(0) if self.exact else row.square()

    def _rows(self, problem: Problem, outputs: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        """Gradients whose squares are F: of drawn targets, or (rows, *shape) of all outputs."""
        options: dict[str, Any] = {"create_graph": True, "materialize_grads": True}
        if self.exact:
            given = _each_example(problem.fisher_vectors(outputs))
            return torch.autograd.grad(outputs, leaves, given, is_grads_batched=True, **options)
        loss = problem.nll(outputs, problem.sample(outputs.detach()))
        return torch.autograd.grad(loss, leaves, torch.ones_like(loss), **options)


def _device(params: Params) -> torch.device:
    return next(iter(params.values())).device


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
