"""Calibration: factors, learned from held-out examples, that set how sure predictions are."""

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
from bayesrule.predicting.evaluate import counted
from bayesrule.predicting.outputs import NOISE, SHARPNESS, SPREAD, Outputs, uncalibrated
from bayesrule.predicting.predict import as_tensor, believed_outputs
from bayesrule.tensors.network import take
from bayesrule.training.batches import is_pair
from bayesrule.types import Params, State

# With fewer examples too few would be held out.
_FEWEST = 1000
# A factor lies between 1 / 20 and 20.
_RANGE = 20.0


def held_out(learner: Learner, train: Any, seed: int) -> tuple[Any, Any] | None:
    """The data to train on, and a tenth of all, at most 1,000 examples, to calibrate with.

    None where there is nothing to calibrate, or the data are not tensors, or are too few.
    """
    if not (can_calibrate(learner.likelihood) and is_pair(train)):
        return None
    x, y = train
    if not isinstance(x, Tensor) or len(x) != len(y) or len(y) < _FEWEST:
        return None
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    size = min(len(y) // 10, 1000)
    held, kept = order[:size], order[size:].sort().values
    targets = torch.as_tensor(y)
    return (take(x, kept.to(x.device)), targets[kept.to(targets.device)]), (
        take(x, held.to(x.device)),
        targets[held.to(targets.device)],
    )


def can_calibrate(likelihood: Likelihood) -> bool:
    """Whether there are factors to learn: for classes, or for a noise that is itself learned."""
    return likelihood.calibrates or likelihood.widens


@dataclass(frozen=True)
class Calibration:
    """The factors of outputs, of their deviations from the mean, and of the noise's variance.

    >>> Calibration(spread=0.5)
    Calibration(sharpness=1.0, spread=0.5, noise=1.0)
    """

    sharpness: float = 1.0
    spread: float = 1.0
    noise: float = 1.0

    def applied(self, state: State) -> State:
        """The state whose predictions have this calibration."""
        plain, like = uncalibrated(state), state.posterior.any_tensor
        factors = {
            name: like.new_tensor(value)
            for name, value in zip((SHARPNESS, SPREAD, NOISE), self._values(), strict=True)
        }
        return dataclasses.replace(plain, likelihood={**plain.likelihood, **factors})

    def _values(self) -> tuple[float, float, float]:
        return self.sharpness, self.spread, self.noise

    def cost(self) -> float:
        """The negative log prior of the factors, centred on one and worth about ten examples."""
        return 5.0 * sum(math.log(value) ** 2 for value in self._values())


class Held(NamedTuple):
    """The network's outputs for held-out examples, and the targets of these.

    Each member of an ensemble has its outputs and its likelihood's state; most runs have one.
    """

    members: Sequence[tuple[Outputs, Params]]
    targets: Tensor

    @classmethod
    def of(cls, learner: Learner, states: Sequence[State], x: Any, y: Any, seed: int = 0) -> Held:
        """The outputs of trained states at inputs x, with targets y."""
        plain = [uncalibrated(state) for state in states]
        with torch.no_grad():
            members = [
                (believed_outputs(learner, state, x, seed=seed), state.likelihood)
                for state in plain
            ]
        return cls(members, learner.likelihood.weighed(as_tensor(y, members[0][0].values.device)))

    def log_prob(self, likelihood: Likelihood, calibration: Calibration) -> Tensor:
        """`log p(y_i)` of each example that counts."""
        first, *others = (
            outputs.calibrated(calibration.sharpness, calibration.spread).components(
                likelihood, likelihood.widened(state, calibration.noise)
            )
            for outputs, state in self.members
        )
        return counted(first.beside(others).mixture_log_prob(self.targets), self.targets)


def held_log_probs(
    likelihood: Likelihood, held: Sequence[Held], calibration: Calibration
) -> Tensor:
    """`log p(y_i)` of all held-out examples that count."""
    with torch.no_grad():
        return torch.cat([part.log_prob(likelihood, calibration) for part in held])


def score(likelihood: Likelihood, held: Sequence[Held], calibration: Calibration) -> float:
    """The mean log-likelihood of all held-out examples."""
    return float(held_log_probs(likelihood, held, calibration).mean())


def learned(likelihood: Likelihood, held: Sequence[Held]) -> Calibration:
    """The factors under which held-out examples are most probable, fitted one after another.

    `spread` multiplies the deviations of outputs from their mean: a posterior that takes weights
    for independent is too wide in all of them together. For classes, `sharpness` then multiplies
    the outputs, which changes how sure predictions are but hardly ever the most probable class (Guo
    et al. 2017, whose temperature is its inverse). `noise` multiplies the variance of a noise that
    was learned from the training examples, which the network has fitted.
    """
    order = ("spread", "sharpness") if likelihood.calibrates else ("noise", "spread", "noise")
    count, best = sum(len(part.targets) for part in held), Calibration()
    for name in order:

        def loss(factor: float, name: str = name, best: Calibration = best) -> float:
            tried = dataclasses.replace(best, **{name: factor})
            return tried.cost() / count - score(likelihood, held, tried)

        best = dataclasses.replace(best, **{name: _smallest(loss)})
    return best


def calibrated(learner: Learner, state: State, data: tuple[Any, Any], seed: int = 0) -> State:
    """The state with the calibration under which the data (x, y) are most probable."""
    held = Held.of(learner, [state], *data, seed=seed)
    return learned(learner.likelihood, [held]).applied(state)


def _smallest(loss: Callable[[float], float]) -> float:
    """The factor with the smallest loss, by golden-section search over its logarithm."""
    low, high, ratio = -math.log(_RANGE), math.log(_RANGE), (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(20):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(math.exp(left)) < loss(math.exp(right)):
            high = right
        else:
            low = left
    return math.exp(0.5 * (low + high))
