"""What a batch says of each weight in closed form: the innovations of TAGI."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesrule import vectors
from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.matrices import DiagonalMatrix, Matrix, Structure
from bayesrule.moments import Propagation


@dataclass(frozen=True)
class Innovations(Curvature):
    """`−δ` as the gradient and `−η` as the curvature of the batch's negative log-evidence.

    `δ` and `η` are the first and second derivatives of `log p(y)` in the mean of a quantity, as
    moment propagation sees it: given the batch, the mean of a weight moves by `v δ` and its
    variance by `v² η`. A batch stands for itself and is not scaled to the whole data: each datum
    is conditioned on once.
    """

    @torch.no_grad()
    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        assert point.activations is not None
        way = Propagation(problem.network, point.activations)
        variance = precision.inverse_diagonal()
        outputs = way.forward(
            point.params, variance, problem.buffers, problem.x, training=problem.training
        )
        found = problem.likelihood.condition(
            outputs.centre, outputs.variance, problem.y, problem.noise
        )
        delta, eta = way.back(outputs, -found.delta, -found.eta)
        statistics = vectors.scale(found.statistics, problem.scale) if found.statistics else {}
        return Local(-found.log_prob.sum(), delta, DiagonalMatrix(eta), statistics)
