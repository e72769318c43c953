"""Inputs at which a trained network predicts the best output, without gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.expectations import Moments
from bayesrule.explore.inference import Bounds, FixedNetwork, clamp, input_prior, posterior_moments
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.types import State


@dataclass(frozen=True, eq=False)
class Optimised:
    """Where a network's output is best, from each of n starts.

    `x` (n, *) are the inputs, `mean` and `std` (n,) what the network predicts there; `path`
    (steps + 1, n, *) and `values` (steps + 1, n) are the best inputs and their scores so far.
    """

    x: Tensor
    mean: Tensor
    std: Tensor
    path: Tensor
    values: Tensor


@torch.no_grad()
def optimise_inputs(
    learner: Learner,
    state: State,
    start: Any,
    *,
    maximise: bool = False,
    variance: Any = None,
    steps: int = 30,
    ambition: float = 1.0,
    exploration: float = 0.0,
    bounds: Bounds | None = None,
    how: Moments | None = None,
) -> Optimised:
    """Moves inputs to where a trained network predicts the least (or the largest) output.

    Each step wants an output `ambition` standard deviations better than the one predicted for
    `N(x, variance)`, and infers the input from it. An input that is not better is rejected, and
    the next step is half as long. Better is a lower `mean − exploration · std` (with `maximise`, a
    higher `mean + exploration · std`); std is the epistemic one. All starts (n, *) move at once.
    """
    sign = -1.0 if maximise else 1.0
    network = FixedNetwork(learner, state, how)
    (x,), _, prior = input_prior((start,), variance, state)
    x, spread = clamp(x, bounds), prior.variance
    mean, std = _predicted(network, x)
    score = sign * mean - exploration * std
    path, values = [x], [sign * score]
    for _ in range(steps):
        trial = clamp(_better(network, x, spread, sign * ambition), bounds)
        new_mean, new_std = _predicted(network, trial)
        new_score = sign * new_mean - exploration * new_std
        accepted = new_score < score
        mean, std = torch.where(accepted, new_mean, mean), torch.where(accepted, new_std, std)
        score = torch.where(accepted, new_score, score)
        wide = accepted.reshape(-1, *[1] * (x.ndim - 1))
        x, spread = torch.where(wide, trial, x), torch.where(wide, spread, 0.25 * spread)
        path.append(x)
        values.append(sign * score)
    return Optimised(x, mean, std, torch.stack(path), torch.stack(values))


def _predicted(network: FixedNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and epistemic standard deviation of one output for each example, (n,)."""
    _, outputs = network.forward(x)
    prediction = network.marginal(outputs)
    likelihood = network.learner.likelihood
    if prediction.mean.numel() != len(x) or likelihood.classification:
        raise ValueError(
            "optimise_inputs takes a network with one real-valued output for each example, got "
            f"{type(likelihood).__name__} of shape {tuple(prediction.mean.shape)}."
        )
    return prediction.mean.reshape(-1), prediction.epistemic.reshape(-1).sqrt()


def _better(network: FixedNetwork, x: Tensor, variance: Tensor, ambition: float) -> Tensor:
    """The inputs that would give an output better by `ambition` standard deviations."""
    propagation, outputs = network.forward(GaussianTensor(x, variance))
    prediction = network.marginal(outputs)
    wanted = prediction.mean - ambition * prediction.epistemic.sqrt()
    network.back(outputs, wanted)
    # A step that goes too far is rejected, so it is not shortened as in infer_inputs.
    return posterior_moments(propagation.inputs[0])[0]
