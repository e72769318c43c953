"""Inputs at which a trained network predicts the best output, found without gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.expectations import Moments
from bayesrule.explore.glance import Bounds, Glance, learned, place, within
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
    variance: Any = None,
    steps: int = 30,
    maximise: bool = False,
    ambition: float = 1.0,
    exploration: float = 0.0,
    bounds: Bounds | None = None,
    how: Moments | None = None,
) -> Optimised:
    """Moves inputs to where a trained network predicts the least (or the largest) output.

    Each step asks for an output `ambition` standard deviations better than what is predicted for
    `N(x, variance)`, and infers the input from it. An input that is not better is not taken, and
    the next ones are looked for at half the distance. Better is a lower `mean − exploration · std`
    (with `maximise`, a higher `mean + exploration · std`), the std being what the belief is not
    sure of. All starts (n, *) are moved at once.
    """
    sign = -1.0 if maximise else 1.0
    glance = Glance(learner, state, how)
    (x,), _, prior = place((start,), variance, state)
    x, spread = within(x, bounds), prior.variance
    mean, std = _predicted(glance, x)
    score = sign * mean - exploration * std
    path, values = [x], [sign * score]
    for _ in range(steps):
        trial = within(_better(glance, x, spread, sign * ambition), bounds)
        new_mean, new_std = _predicted(glance, trial)
        new_score = sign * new_mean - exploration * new_std
        taken = new_score < score
        mean, std = torch.where(taken, new_mean, mean), torch.where(taken, new_std, std)
        score = torch.where(taken, new_score, score)
        wide = taken.reshape(-1, *[1] * (x.ndim - 1))
        x, spread = torch.where(wide, trial, x), torch.where(wide, spread, 0.25 * spread)
        path.append(x)
        values.append(sign * score)
    return Optimised(x, mean, std, torch.stack(path), torch.stack(values))


def _predicted(glance: Glance, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and epistemic standard deviation of one output for each example, (n,)."""
    _, outputs = glance.forward(x)
    found = glance.learner.likelihood.marginal(outputs.centre, outputs.variance, glance.state.likelihood)
    if found.mean.numel() != len(x) or glance.learner.likelihood.classification:
        raise ValueError(
            "What is optimised is one real-valued output for each example, got "
            f"{type(glance.learner.likelihood).__name__} of shape {tuple(found.mean.shape)}."
        )
    return found.mean.reshape(-1), found.epistemic.reshape(-1).sqrt()


def _better(glance: Glance, x: Tensor, variance: Tensor, ambition: float) -> Tensor:
    """The inputs that an output better by `ambition` standard deviations would have come from."""
    way, outputs = glance.forward(GaussianTensor(x, variance))
    found = glance.learner.likelihood.marginal(outputs.centre, outputs.variance, glance.state.likelihood)
    glance.back(way, outputs, found.mean - ambition * found.epistemic.sqrt())
    # A step that goes too far is not taken, so it is not held back as in infer_inputs.
    return learned(way.inputs[0])[0]
