"""The exact Hessian, for small nets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.matrices import Matrix, Structure

# Rows of the Hessian that are worked on together.
_ROWS = 64


@dataclass(frozen=True)
class Hessian(Curvature):
    """`∇²ℓ` by a second backward pass for each parameter; may be negative away from a minimum."""

    limit: int = 5_000

    may_be_negative = True

    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        leaves = {name: value.detach().requires_grad_() for name, value in point.params.items()}
        size = sum(value.numel() for value in leaves.values())
        if size > self.limit:
            raise ValueError(
                f"The exact Hessian takes a backward pass for each of {size:,} parameters; the "
                f"limit is {self.limit:,}. Use GGN(), Fisher() or Hessian(limit={size})."
            )
        outputs = problem.forward(leaves)
        loss = problem.nll(outputs, problem.y)
        wanted = list(leaves.values())
        scaled = loss * problem.scale
        found = torch.autograd.grad(scaled, wanted, create_graph=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in found])
        matrix = _rows(flat, wanted)
        gradient = {k: g.detach() for k, g in zip(leaves, found, strict=True)}
        curvature = structure.project(0.5 * (matrix + matrix.mT), point.params)
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))


def _rows(gradient: torch.Tensor, wanted: list[torch.Tensor]) -> torch.Tensor:
    """The derivative of a gradient (P,) in the parameters, (P, P), some rows at a time."""
    size = len(gradient)
    if not gradient.requires_grad:
        return gradient.new_zeros(size, size)
    blocks = []
    for part in torch.eye(size, dtype=gradient.dtype, device=gradient.device).split(_ROWS):
        found = torch.autograd.grad(
            gradient,
            wanted,
            part,
            retain_graph=True,
            is_grads_batched=True,
            allow_unused=True,
        )
        blocks.append(
            torch.cat(
                [
                    part.new_zeros(len(part), w.numel()) if rows is None else rows.flatten(1)
                    for w, rows in zip(wanted, found, strict=True)
                ],
                dim=1,
            )
        )
    return torch.cat(blocks)
