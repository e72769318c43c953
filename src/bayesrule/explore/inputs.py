"""The inputs that a wanted output would have come from, the weights being left as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.expectations import Moments
from bayesrule.explore.glance import Bounds, Glance, Inferred, learned_inputs, place, within
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import State


@dataclass(frozen=True, eq=False)
class InferredInputs(Inferred):
    """Inputs before and after, and what the network said on the way.

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
    """The inputs (n, *) that a wanted output y would have come from: `x̄ + s δ` and `s + s² η`.

    Goulet, Nguyen & Amiri (2021). The prior of the inputs is `N(x, variance)`, or x is made by
    `uncertain`; of several inputs, given as a tuple, the uncertain one is inferred. With more
    `steps` each posterior is the next prior; without `carry` only its mean is, and the variance
    starts again, so that the inputs may wander further. `bounds` hold after each step. No step
    goes further than what the outputs ask for (see `learned_inputs`). The weights stay as they are.

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
    glance = Glance(learner, state, how)
    inputs, at, prior = place(x, variance, state)
    targets = torch.as_tensor(y, device=prior.centre.device)
    size = num_examples(inputs)
    if len(targets) != size:
        raise ValueError(f"There are {size} inputs but {len(targets)} wanted outputs.")
    found = []
    for start in range(0, size, batch_size):
        rows = slice(start, start + batch_size)
        part = prior.centre[rows], prior.variance[rows]
        fixed = take(inputs, rows)
        found.append(_walk(glance, fixed, at, part, targets[rows], steps, carry, bounds))
    columns = list(zip(*found, strict=True))
    mean, spread = (torch.cat(column) for column in columns[:2])
    return InferredInputs(
        prior.centre, prior.variance, mean, spread, *(torch.cat(c, dim=1) for c in columns[2:])
    )


def _walk(
    glance: Glance,
    inputs: Inputs,
    at: int,
    prior: tuple[Tensor, Tensor],
    y: Tensor,
    steps: int,
    carry: bool,
    bounds: Bounds | None,
) -> tuple[Tensor, ...]:
    """Mean, variance, and what the outputs were on the way, of one batch."""
    mean, variance = prior
    said = []
    for _ in range(steps):
        given = (*inputs[:at], GaussianTensor(mean, variance), *inputs[at + 1 :])
        way, outputs = glance.forward(given)
        log_prob = glance.back(way, outputs, y)
        mean, found = learned_inputs(way.inputs[at], outputs)
        mean = within(mean, bounds)
        said.append((outputs.centre, outputs.variance, log_prob))
        last, variance = found, found if carry else variance
    return mean, last, *(torch.stack(kind) for kind in zip(*said, strict=True))
