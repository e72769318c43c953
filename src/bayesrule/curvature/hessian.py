"""The exact Hessian, for small nets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.types import Local

# Rows of the Hessian that are worked on together.
_ROWS = 64


@dataclass(frozen=True)
class Hessian(Curvature):
    """`∇²ℓ` by a second backward pass for each parameter; may be negative away from a minimum."""

    limit: int = 5_000

    may_be_negative = True
    stack_obstacle = None

    def local(self, problem: Problem, here: Here) -> Local:
        leaves = {
            name: value.detach().requires_grad_() for name, value in here.point.coordinates.items()
        }
        axes = problem.axes
        size = sum(math.prod(value.shape[axes:]) for value in leaves.values())
        if size > self.limit:
            raise ValueError(
                f"The exact Hessian takes a backward pass for each of {size:,} parameters; the "
                f"limit is {self.limit:,}. Use GGN(), Fisher() or Hessian(limit={size})."
            )
        outputs = problem.forward(here.point.weights(leaves))
        loss = problem.nll(outputs, problem.y)
        wanted = list(leaves.values())
        scaled = loss * problem.scale
        options = {"create_graph": True, "materialize_grads": True}
        found = torch.autograd.grad(scaled, wanted, torch.ones_like(scaled), **options)
        flat = torch.cat([g.flatten(start_dim=axes) for g in found], dim=axes)
        matrix = _rows(flat, wanted)
        gradient = {k: g.detach() for k, g in zip(leaves, found, strict=True)}
        curvature = here.structure.project(0.5 * (matrix + matrix.mT), here.point.coordinates)
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))


def _rows(gradient: torch.Tensor, wanted: list[torch.Tensor]) -> torch.Tensor:
    """The derivative of a gradient (P,) in the parameters, (P, P), some rows at a time.

    Of nets that are stacked, (num, P), it is (num, P, P).
    """
    (*nets, size), blocks = gradient.shape, []
    if not gradient.requires_grad:
        return gradient.new_zeros(*nets, size, size)
    for part in torch.eye(size, dtype=gradient.dtype, device=gradient.device).split(_ROWS):
        found = torch.autograd.grad(
            gradient,
            wanted,
            part.reshape(-1, *[1] * len(nets), size).expand(-1, *gradient.shape),
            retain_graph=True,
            is_grads_batched=True,
            allow_unused=True,
        )
        blocks.append(
            torch.cat(
                [
                    _zeros(part, w, len(nets)) if rows is None else rows.flatten(1 + len(nets))
                    for w, rows in zip(wanted, found, strict=True)
                ],
                dim=-1,
            )
        )
    return torch.cat(blocks).movedim(0, -2)


def _zeros(part: torch.Tensor, weight: torch.Tensor, axes: int) -> torch.Tensor:
    """Rows of a weight that the gradient does not depend on."""
    return part.new_zeros(len(part), *weight.shape).flatten(1 + axes)
