"""The Fisher information and the generalised Gauss-Newton matrix."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.types import Local


class _ModelVectors(Curvature):
    """Curvature from vectors that the model itself gives, whatever the targets are.

    Examples are independent given the weights, which batch norm in training mode would deny. As in
    inference its mean and variance then count as known numbers; those of the batch are taken, with
    which the loss was found too, because running averages are far from them at the start. The
    gradient of the loss goes through them as always.
    """

    needs_rows = True
    takes_coordinates = True
    of_weights = True
    stack_obstacle = None

    @abstractmethod
    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        """What is backpropagated from the outputs, (V, n, *)."""

    def local(self, problem: Problem, here: Here) -> Local:
        recording = problem.record(here.point)
        loss, slope = problem.loss(recording.outputs)
        gradient = recording.gradient(slope)
        rows, _ = recording.backward(
            self.vectors(problem, recording.outputs.detach()), gradient=False
        )
        statistics = problem.statistics(recording.outputs)
        curvature = here.structure.contract(rows).times_(problem.scale)
        return Local(loss, gradient, curvature, statistics)


@dataclass(frozen=True)
class Fisher(_ModelVectors):
    """The Fisher information with targets drawn from the model, `samples` for each example.

    In it, batch norm in training mode has the mean and variance of the batch as known numbers.
    """

    samples: int = 1

    draws_targets = True
    asks = ("sample",)

    @property
    def draws_together(self) -> bool:  # type: ignore[override]
        """Of several samples, each draw's targets are drawn before the next draw's."""
        return self.samples == 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"Fisher takes at least one sample, got {self.samples}.")

    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        return torch.stack([self._score(problem, outputs) for _ in range(self.samples)])

    def _score(self, problem: Problem, outputs: Tensor) -> Tensor:
        leaf = outputs.detach().requires_grad_()
        loss = problem.nll(leaf, problem.sample(leaf.detach()))
        (score,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
        return score * self.samples**-0.5


@dataclass(frozen=True)
class GGN(_ModelVectors):
    """The exact generalised Gauss-Newton matrix `Σ Jᵀ H J`, one backward pass for each output.

    H is the Fisher information of the outputs, which for the likelihoods here with a fixed noise is
    the Hessian, except for the heteroscedastic one.
    """

    asks = ("fisher_vectors",)

    def vectors(self, problem: Problem, outputs: Tensor) -> Tensor:
        return problem.fisher_vectors(outputs)
