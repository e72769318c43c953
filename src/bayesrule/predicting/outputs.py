"""What is believed of a network's outputs, before a likelihood makes predictions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.likelihoods import Likelihood
from bayesrule.predicting.prediction import Prediction
from bayesrule.types import Params, State


@dataclass(frozen=True)
class Outputs:
    """Outputs at draws (K, n, *), or Gaussian ones: a mean (n, *) and a variance.

    `joint` says that the variance is a covariance of all outputs of an example, (n, C, C).
    """

    values: Tensor
    variance: Tensor | None = None
    joint: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Outputs]) -> Outputs:
        """The outputs of batches, one after another."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        if first.variance is None:
            return cls(torch.cat([part.values for part in parts], dim=1))
        known = [(part.values, part.variance) for part in parts if part.variance is not None]
        values, variances = zip(*known, strict=True)
        return cls(torch.cat(values), torch.cat(variances), first.joint)

    def calibrated(self, sharpness: Tensor | float, spread: Tensor | float) -> Outputs:
        """The outputs multiplied by one number, and their deviations from the mean by another."""
        factor = sharpness * spread
        if self.variance is not None:
            return Outputs(self.values * sharpness, self.variance * factor**2, self.joint)
        centre = self.values.mean(0)
        return Outputs(centre * sharpness + (self.values - centre) * factor)

    def seen(self, state: Params) -> Outputs:
        """The outputs as predictions see them: calibrated where the state says how."""
        return self.calibrated(state[SHARPNESS], state[SPREAD]) if SPREAD in state else self

    def prediction(self, likelihood: Likelihood, state: Params) -> Prediction:
        """What is believed of the targets, calibrated where the state says how."""
        seen = self.seen(state)
        state = likelihood.widened(state, state[NOISE]) if NOISE in state else state
        if seen.variance is None:
            return Prediction.mixture(likelihood.distribution(seen.values, state))
        marginal = likelihood.joint_marginal if seen.joint else likelihood.marginal
        return Prediction.closed_form(marginal(seen.values, seen.variance, state))


SHARPNESS, SPREAD, NOISE = CALIBRATION = "sharpness", "spread", "noise factor"
"""Numbers in a likelihood's state that calibration multiplies by: outputs, their deviations from
the mean, and the variance of the noise."""


def uncalibrated(state: State) -> State:
    """A state without the numbers of a calibration, as training begins with it."""
    kept = {k: v for k, v in state.likelihood.items() if k not in CALIBRATION}
    return replace(state, likelihood=kept)
