"""The exact Hessian, for small nets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.matrices import Matrix, Structure


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
        rows = [self._row(entry, wanted) for entry in flat]
        matrix = torch.stack(rows)
        gradient = {k: g.detach() for k, g in zip(leaves, found, strict=True)}
        curvature = structure.project(0.5 * (matrix + matrix.mT), point.params)
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))

    def _row(self, entry: torch.Tensor, wanted: list[torch.Tensor]) -> torch.Tensor:
        if not entry.requires_grad:
            return torch.cat([torch.zeros_like(w).reshape(-1) for w in wanted])
        row = torch.autograd.grad(entry, wanted, retain_graph=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in row])
