"""The expected loss to second order around the mean, and its gradient: Variational Laplace."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature._base import Curvature, Here, Problem, plain_gradient
from bayesrule.posteriors import Point, StdSlope
from bayesrule.tensors import vectors
from bayesrule.tensors.network import num_examples, take
from bayesrule.tensors.vectors import over
from bayesrule.types import Local, Params


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

    at_mean = True
    diagonal_only = True
    slopes_only = True

    @property
    def draws_targets(self) -> bool:  # type: ignore[override]
        """Whether targets are drawn, and outputs not enumerated."""
        return not self.exact

    @property
    def asks(self) -> tuple[str, ...]:  # type: ignore[override]
        """What it needs of a likelihood."""
        return ("fisher_vectors",) if self.exact else ("sample",)

    @property
    def stack_obstacle(self) -> str | None:
        return None if self == SecondOrder() else f"the curvature {self}"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is more than 0 and at most 1, got {self.share}.")
        if self.difference is not None and not 0 < self.difference < 1:
            raise ValueError(f"difference is a share between 0 and 1, got {self.difference}.")
        if self.exact and self.difference is not None:
            raise ValueError("exact=True differentiates everything; give no difference with it.")

    def local(self, problem: Problem, here: Here) -> Local:
        num = num_examples(problem.x)
        some = math.ceil(self.share * num)
        if some == num:
            return self._priced(problem, here.point, here.posterior.std())
        loss, gradient, outputs = plain_gradient(problem, here.point)
        first = slice(0, some)
        part = replace(
            problem,
            x=take(problem.x, first),
            y=problem.y[first],
            # What this look does to the buffers is forgotten.
            buffers={k: v.clone() for k, v in problem.buffers.items()},
            count=problem.count * (some / num),
        )
        priced = self._priced(part, here.point, here.posterior.std(), alone=True)
        total = vectors.add_(gradient, priced.gradient)
        return Local(loss, total, priced.curvature, problem.statistics(outputs))

    def _priced(self, problem: Problem, point: Point, std: Params, *, alone: bool = False) -> Local:
        """Loss and price together, or the price `alone`."""
        if self.difference is not None:
            # Of two gradients rounded to a few digits nothing would be left.
            with torch.autocast(problem.y.device.type, enabled=False):
                return self._by_difference(problem, point, std, self.difference, alone=alone)
        leaves = _leaves(point.coordinates)
        outputs = problem.forward(leaves)
        loss = problem.nll(outputs, problem.y)
        sharp = {name: leaves[name] for name in std}
        rows = self._rows(problem, outputs, sharp)
        seen = {name: row.detach() for name, row in rows.items()}
        # The price is Σ σ² r² / 2, so its gradient goes back through each row r as σ² r; a row that
        # is the same at all weights, such as the last bias of a linear model, has none.
        half = vectors.mul(seen, std)
        back = vectors.mul(half, std)
        moving = [name for name, row in rows.items() if row.requires_grad]
        found = torch.autograd.grad(
            [loss, *(rows[name] for name in moving)],
            list(leaves.values()),
            [
                torch.zeros_like(loss) + (0.0 if alone else problem.scale),
                *(back[name] for name in moving),
            ],
            materialize_grads=True,
        )
        gradient = vectors.apart(dict(zip(leaves, found, strict=True)), back.values())
        slope = vectors.mul_(half, seen)
        if self.exact:
            slope = {name: value.sum(0) for name, value in slope.items()}
        return Local(loss.detach(), gradient, StdSlope(slope), problem.statistics(outputs))

    def _by_difference(
        self, problem: Problem, point: Point, std: Params, size: float, *, alone: bool
    ) -> Local:
        _refuse_dropout(problem)
        mean = point.coordinates
        leaves = _leaves(mean)
        # What the second look does to the buffers is forgotten.
        again = replace(problem, buffers={k: v.clone() for k, v in problem.buffers.items()})
        outputs = problem.forward(leaves)
        targets = problem.sample(outputs.detach())
        loss, root = problem.nll(outputs, problem.y), problem.scale**0.5
        score = _gradient(problem.nll(outputs, targets) * root, leaves, retain_graph=not alone)
        sharp = {name: score[name] for name in std}
        half = vectors.mul(sharp, std)
        direction = vectors.mul(half, std)
        length = torch.sqrt(vectors.dot(mean, mean) / vectors.dot(direction, direction))
        sign = torch.empty_like(length).uniform_(-1.0, 1.0, generator=problem.targets).sign()
        step = size * sign * length.nan_to_num(0.0, 0.0, 0.0)
        moved = {k: v + step * direction[k] if k in direction else v for k, v in mean.items()}
        other = _leaves(moved)
        other = _gradient(again.nll(again.forward(other), targets) * root, other)
        weight = torch.where(step == 0, 0.0, 1.0 / step)
        gradient = vectors.scale_(vectors.add(other, score, alpha=-1.0), weight)
        if not alone:
            vectors.add_(gradient, _gradient(loss * problem.scale, leaves))
        slope = StdSlope(vectors.mul_(half, sharp))
        return Local(loss.detach(), gradient, slope, problem.statistics(outputs))

    def _rows(self, problem: Problem, outputs: Tensor, leaves: Params) -> Params:
        """Gradients whose squares are F: of drawn targets, or (rows, *shape) of all outputs."""
        options: dict[str, Any] = {"create_graph": True, "materialize_grads": True}
        # Their squares are to have the problem's scale.
        root, given = problem.scale**0.5, list(leaves.values())
        if self.exact:
            each = _each_example(problem.fisher_vectors(outputs)) * over(root, outputs)
            found = torch.autograd.grad(outputs, given, each, is_grads_batched=True, **options)
        else:
            loss = problem.nll(outputs, problem.sample(outputs.detach()))
            found = torch.autograd.grad(loss, given, torch.zeros_like(loss) + root, **options)
        return dict(zip(leaves, found, strict=True))


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
