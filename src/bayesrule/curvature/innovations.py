"""What a batch says of each weight in closed form: the innovations of TAGI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.curvature._base import Curvature, Local, Problem
from bayesrule.expectations import Point
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import DiagonalMatrix, Matrix, Structure
from bayesrule.moments import Activations, Propagation
from bayesrule.tensors import vectors
from bayesrule.tensors.network import Inputs, Network
from bayesrule.tensors.vectors import apart
from bayesrule.types import Params


class Innovation(NamedTuple):
    """Sums over a batch: its negative log-evidence, and `−δ` and `−η` of each weight.

    `sound` says whether all of it is finite; `statistics` are what the likelihood learns from.
    """

    loss: Tensor
    sound: Tensor
    delta: Params
    eta: Params
    statistics: Params


@dataclass(frozen=True)
class Innovations(Curvature):
    """`−δ` as the gradient and `−η` as the curvature of the batch's negative log-evidence.

    `δ` and `η` are the first and second derivatives of `log p(y)` in the mean of a quantity, as
    moment propagation sees it: given the batch, the mean of a weight moves by `v δ` and its
    variance by `v² η`. A batch stands for itself and is not scaled to the whole data: each datum
    is conditioned on once, with the weight 1/T at the temperature T.
    """

    @torch.no_grad()
    def local(
        self, problem: Problem, point: Point, structure: Structure, precision: Matrix
    ) -> Local:
        assert point.activations is not None
        belief, network = (point.params, precision.inverse_diagonal()), problem.network
        found = innovation(
            network,
            problem.likelihood,
            point.activations,
            *belief,
            problem.noise,
            problem.buffers,
            problem.x,
            problem.y,
            temperature=problem.temperature,
            training=problem.training,
        )
        # Asking would make a GPU wait; what goes wrong there is seen at the end of the epoch.
        if found.loss.device.type == "cpu" and not found.sound:
            way = Propagation(network, point.activations)
            way.explain(*belief, problem.buffers, problem.x, problem.y, training=problem.training)
        statistics = vectors.scale(found.statistics, problem.scale)
        return Local(found.loss, apart(found.delta), DiagonalMatrix(apart(found.eta)), statistics)


def innovation(
    network: Network,
    likelihood: Likelihood,
    activations: Activations,
    mean: Params,
    variance: Params,
    noise: Params,
    buffers: Params,
    x: Inputs,
    y: Tensor,
    *,
    temperature: float,
    training: bool = True,
) -> Innovation:
    """What a batch says, as arithmetic on tensors alone: it can be mapped over nets and compiled.

    `buffers` are changed as the module changes them.
    """
    way = Propagation(network, activations)
    outputs = way.forward(mean, variance, buffers, x, training=training)
    found = likelihood.condition(outputs.centre, outputs.variance, y, noise)
    loss, weight = -found.log_prob.sum(), -1.0 / temperature
    # An example without a target has no part in the loss but does have innovations.
    sound = (loss + found.delta.sum()).isfinite()
    delta, eta = way.innovations(outputs, found.delta * weight, found.eta * weight)
    return Innovation(loss, sound, delta, eta, found.statistics)
