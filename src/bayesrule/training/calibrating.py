"""How sure predictions are: a few numbers, learned from examples that are held out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting.evaluate import log_probs
from bayesrule.predicting.outputs import NOISE, SHARPNESS, SPREAD, Outputs, uncalibrated
from bayesrule.predicting.predict import as_tensor, believed_outputs
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.network import take
from bayesrule.training.batches import is_pair
from bayesrule.types import Params, State

# Of fewer examples too few would be held out.
_FEWEST = 1000
# Nothing is multiplied or divided by more.
_RANGE = 20.0


def held_out(learner: Learner, train: Any, seed: int) -> tuple[Any, Any] | None:
    """The data without a tenth of them, at most 1,000 examples, and those; None if not for them.

    Only data that are tensors, and enough, are held out, and only where something is calibrated.
    """
    if not (can_calibrate(learner.likelihood) and is_pair(train)):
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


def can_calibrate(likelihood: Likelihood) -> bool:
    """Whether there is a number to learn: that of classes, or of a noise that was learned."""
    return likelihood.calibrates or likelihood.widens


@dataclass(frozen=True)
class Calibration:
    """What predictions are multiplied by: outputs, their deviations, the variance of the noise.

    >>> Calibration(spread=0.5)
    Calibration(sharpness=1.0, spread=0.5, noise=1.0)
    """

    sharpness: float = 1.0
    spread: float = 1.0
    noise: float = 1.0

    def applied(self, state: State) -> State:
        """The state that predicts so."""
        plain, like = uncalibrated(state), state.posterior.any_tensor
        learned = {
            name: like.new_tensor(value)
            for name, value in zip((SHARPNESS, SPREAD, NOISE), self._values(), strict=True)
        }
        return dataclasses.replace(plain, likelihood={**plain.likelihood, **learned})

    def _values(self) -> tuple[float, float, float]:
        return self.sharpness, self.spread, self.noise

    def cost(self) -> float:
        """What is believed of the numbers before: near one, as ten examples or so would say."""
        return 5.0 * sum(math.log(value) ** 2 for value in self._values())


class Held(NamedTuple):
    """What was believed of held-out examples, and their targets.

    Each member of an ensemble has outputs and a likelihood's own state; of most runs there is one.
    """

    members: Sequence[tuple[Outputs, Params]]
    targets: Tensor

    @classmethod
    def of(cls, learner: Learner, states: Sequence[State], x: Any, y: Any, seed: int = 0) -> Held:
        """What learned states say of examples."""
        plain = [uncalibrated(state) for state in states]
        with torch.no_grad():
            each = [(believed_outputs(learner, one, x, seed=seed), one.likelihood) for one in plain]
        return cls(each, learner.likelihood.weighed(as_tensor(y, each[0][0].values.device)))

    def log_prob(self, likelihood: Likelihood, calibration: Calibration) -> Tensor:
        """Of each example that counts."""
        each = [
            outputs.calibrated(calibration.sharpness, calibration.spread).prediction(
                likelihood, likelihood.widened(state, calibration.noise)
            )
            for outputs, state in self.members
        ]
        return log_probs(Prediction.pooled(each), self.targets)


def score(likelihood: Likelihood, held: Sequence[Held], calibration: Calibration) -> float:
    """The mean log-likelihood of all held-out examples."""
    with torch.no_grad():
        return float(torch.cat([one.log_prob(likelihood, calibration) for one in held]).mean())


def learned(likelihood: Likelihood, held: Sequence[Held]) -> Calibration:
    """The numbers at which held-out examples are most probable.

    First the deviations of outputs from their mean are multiplied by one, since beliefs that are
    independent in each weight are too wide in all of them together. Then classes have their outputs
    multiplied by another, which changes how sure predictions are and hardly ever of which class
    (Guo et al. 2017, there one over a temperature). A noise that was learned from the examples of
    training, which the network knows, is multiplied, too.
    """
    order = ("spread", "sharpness") if likelihood.calibrates else ("noise", "spread", "noise")
    count, found = sum(len(one.targets) for one in held), Calibration()
    for name in order:

        def loss(factor: float, name: str = name, found: Calibration = found) -> float:
            tried = dataclasses.replace(found, **{name: factor})
            return tried.cost() / count - score(likelihood, held, tried)

        found = dataclasses.replace(found, **{name: _smallest(loss)})
    return found


def calibrated(learner: Learner, state: State, data: tuple[Any, Any], seed: int = 0) -> State:
    """The state with the numbers at which the data are most probable."""
    held = Held.of(learner, [state], *data, seed=seed)
    return learned(learner.likelihood, [held]).applied(state)


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
