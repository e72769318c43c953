"""How sure the probabilities of classes are: two numbers, learned from examples held out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.predicting.outputs import SHARPNESS, SPREAD, uncalibrated
from bayesrule.predicting.predict import believed_outputs
from bayesrule.tensors.network import take
from bayesrule.training.batches import is_pair
from bayesrule.types import State

# Of fewer examples too few would be held out.
_FEWEST = 1000
# Nothing is multiplied or divided by more.
_RANGE = 20.0


def held_out(learner: Learner, train: Any, seed: int) -> tuple[Any, Any] | None:
    """The data without a tenth of them, at most 1,000 examples, and those; None if not for them.

    Only classes are calibrated, and only data that are tensors and enough.
    """
    if not (learner.likelihood.calibrates and is_pair(train)):
        return None
    x, y = train
    if not isinstance(x, Tensor) or len(x) != len(y) or len(y) < _FEWEST:
        return None
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    size = min(len(y) // 10, 1000)
    held, rest = order[:size], order[size:].sort().values
    targets = torch.as_tensor(y)
    return (take(x, rest.to(x.device)), targets[rest.to(targets.device)]), (
        take(x, held.to(x.device)),
        targets[held.to(targets.device)],
    )


def calibrated(learner: Learner, state: State, data: tuple[Any, Any], seed: int = 0) -> State:
    """The state with the two numbers at which the data are most probable.

    First the deviations of outputs from their mean are multiplied by one, since beliefs that are
    independent in each weight are too wide in all of them together; then the outputs themselves by
    another, which changes how sure predictions are and hardly ever of which class (Guo et al. 2017,
    there one over a temperature).
    """
    x, y = data
    plain = uncalibrated(state)
    kept = plain.likelihood
    with torch.no_grad():
        outputs = believed_outputs(learner, plain, x, seed=seed)
        targets = torch.as_tensor(y, device=outputs.values.device)

        def loss(sharpness: float, spread: float) -> float:
            seen = outputs.calibrated(sharpness, spread).prediction(learner.likelihood, kept)
            return -float(seen.log_prob(targets).mean())

        spread = _smallest(lambda factor: loss(1.0, factor))
        sharpness = _smallest(lambda factor: loss(factor, spread))
    like = state.posterior.any_tensor
    learned = {SHARPNESS: like.new_tensor(sharpness), SPREAD: like.new_tensor(spread)}
    return dataclasses.replace(state, likelihood={**kept, **learned})


def _smallest(loss: Callable[[float], float]) -> float:
    """The factor with the smallest loss, by a golden-section search over its logarithm."""
    low, high, ratio = -math.log(_RANGE), math.log(_RANGE), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(20):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(math.exp(left)) < loss(math.exp(right)):
            high = right
        else:
            low = left
    return math.exp(0.5 * (low + high))
