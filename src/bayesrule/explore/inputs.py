"""The inputs that would give a wanted output; the weights stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.expectations import Moments
from bayesrule.explore.inference import (
    Bounds,
    FixedNetwork,
    Inferred,
    clamp,
    input_posterior_moments,
    input_prior,
)
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.tensors.network import num_examples, take
from bayesrule.types import State


@dataclass(frozen=True, eq=False)
class InferredInputs(Inferred):
    """Inputs before and after inference, and the outputs at each step.

    `output_mean` and `output_variance` (steps, n, *) are its outputs and `log_prob` (steps, n) is
    `log p(y)` of the wanted outputs, before each step.
    """

    output_mean: Tensor
    output_variance: Tensor
    log_prob: Tensor


@torch.no_grad()
def infer_inputs(
    learner: Learner,
    state: State,
    x: Any,
    y: Any,
    *,
    variance: Any = None,
    steps: int = 1,
    carry: bool = True,
    bounds: Bounds | None = None,
    how: Moments | None = None,
    batch_size: int = 1024,
) -> InferredInputs:
    """Infers the inputs (n, *) that would give a wanted output y: `x̄ + s δ` and `s + s² η`.

    Goulet, Nguyen & Amiri (2021). The prior of the inputs is `N(x, variance)`, or x is made by
    `uncertain`; of several inputs, given as a tuple, the uncertain one is inferred. With more
    `steps` each posterior is the next prior; without `carry` only its mean is, and the variance
    starts again, so that the inputs may move further. `bounds` hold after each step. No step moves
    the outputs further than to y (`input_posterior_moments`). The weights stay as they are.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> model = nn.Linear(1, 1)
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(2.0), model.bias.zero_()
    >>> learner = tagi(model, GaussianLikelihood(noise=0.1), num_data=1, gain=1e-3)
    >>> found = infer_inputs(learner, learner.init(), torch.zeros(1, 1), torch.ones(1), variance=1)
    >>> found.mean, found.variance
    (tensor([[0.4988]]), tensor([[0.0025]]))
    """
    if steps < 1:
        raise ValueError(f"steps is at least 1, got {steps}.")
    network = FixedNetwork(learner, state, how)
    inputs, index, prior = input_prior(x, variance, state)
    targets = torch.as_tensor(y, device=prior.centre.device)
    size = num_examples(inputs)
    if len(targets) != size:
        raise ValueError(f"There are {size} inputs but {len(targets)} wanted outputs.")

    def infer(rows: slice) -> tuple[Tensor, ...]:
        """Mean, variance and the outputs of all steps, of one batch."""
        mean, variance = prior.centre[rows], prior.variance[rows]
        batch, outputs_by_step = take(inputs, rows), []
        for _ in range(steps):
            uncertain = GaussianTensor(mean, variance)
            given = (*batch[:index], uncertain, *batch[index + 1 :])
            propagation, outputs = network.forward(given)
            log_prob = network.back(outputs, targets[rows])
            moved, posterior = input_posterior_moments(propagation.inputs[index], outputs)
            mean, variance = clamp(moved, bounds), posterior if carry else variance
            outputs_by_step.append((outputs.centre, outputs.variance, log_prob))
        return mean, posterior, *(torch.stack(kind) for kind in zip(*outputs_by_step, strict=True))

    batches = [infer(slice(i, i + batch_size)) for i in range(0, size, batch_size)]
    columns = list(zip(*batches, strict=True))
    mean, spread = (torch.cat(column) for column in columns[:2])
    by_step = (torch.cat(column, dim=1) for column in columns[2:])
    return InferredInputs(prior.centre, prior.variance, mean, spread, *by_step)
