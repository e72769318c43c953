"""What a batch says of each weight in closed form: the innovations of TAGI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from bayesrule.curvature._base import Curvature, Here, Problem
from bayesrule.expectations import Look
from bayesrule.expectations.moments import MomentPoint
from bayesrule.matrices import DiagonalMatrix
from bayesrule.tensors.vectors import apart, over
from bayesrule.types import Local


@dataclass(frozen=True)
class Innovations(Curvature):
    """`−δ` as the gradient and `−η` as the curvature of the batch's negative log-evidence.

    `δ` and `η` are the first and second derivatives of `log p(y)` in the mean of a quantity, as
    moment propagation sees it: given the batch, the mean of a weight moves by `v δ` and its
    variance by `v² η`. A batch stands for itself and is not scaled to the whole data: each datum
    is conditioned on once, with the weight 1/T at the temperature T.
    """

    look = Look.MOMENTS
    diagonal_only = True
    whole_data = False
    stack_obstacle = None
    asks = ("condition",)

    @torch.no_grad()
    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(MomentPoint, here.point)
        found = problem.innovations(point.coordinates, point.variance, point.activations)
        # Asking would make a GPU wait; what goes wrong there is seen at the end of the epoch.
        if problem.checked and found.loss.device.type == "cpu" and not found.sound.all():
            problem.explain(point.coordinates, point.variance, point.activations, found.sound)
        statistics = {
            name: value * over(problem.scale, value) for name, value in found.statistics.items()
        }
        return Local(found.loss, apart(found.delta), DiagonalMatrix(apart(found.eta)), statistics)
