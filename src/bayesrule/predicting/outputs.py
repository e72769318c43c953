"""The distribution of a network's outputs, from which a likelihood makes predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.likelihoods import Likelihood, TargetDistribution
from bayesrule.predicting.prediction import Prediction
from bayesrule.types import Params, State


@dataclass(frozen=True)
class Outputs:
    """Outputs at draws (K, n, *), or Gaussian outputs: a mean (n, *) and a variance.

    `joint` says that the variance is the covariance of all outputs of an example, (n, C, C).
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
        moments = [(part.values, part.variance) for part in parts if part.variance is not None]
        values, variances = zip(*moments, strict=True)
        return cls(torch.cat(values), torch.cat(variances), first.joint)

    def calibrated(self, sharpness: Tensor | float, spread: Tensor | float) -> Outputs:
        """The outputs multiplied by one number, and their deviations from the mean by another."""
        factor = sharpness * spread
        if self.variance is not None:
            return Outputs(self.values * sharpness, self.variance * factor**2, self.joint)
        centre = self.values.mean(0)
        return Outputs(centre * sharpness + (self.values - centre) * factor)

    def seen(self, state: Params) -> Outputs:
        """The outputs with the calibration in a likelihood's state, if there is one."""
        return self.calibrated(state[SHARPNESS], state[SPREAD]) if SPREAD in state else self

    def components(self, likelihood: Likelihood, state: Params) -> TargetDistribution:
        """The K components of the prediction, (K, n, *), without a calibration in the state."""
        if self.variance is None:
            return likelihood.distribution(self.values, state)
        parts = self.values, self.variance, state
        return likelihood.marginal_targets(*parts, joint=self.joint)[None]

    def prediction(self, likelihood: Likelihood, state: Params) -> Prediction:
        """The prediction of the targets, with the calibration in the state, if there is one."""
        outputs = self.seen(state)
        state = likelihood.widened(state, state[NOISE]) if NOISE in state else state
        if outputs.variance is None:
            return Prediction.mixture(likelihood.distribution(outputs.values, state))
        marginal = likelihood.joint_marginal if outputs.joint else likelihood.marginal
        return Prediction.closed_form(marginal(outputs.values, outputs.variance, state))


SHARPNESS, SPREAD, NOISE = CALIBRATION = "sharpness", "spread", "noise factor"
"""Names of the calibration factors in a likelihood's state: those of the outputs, of their
deviations from the mean, and of the noise's variance."""


def uncalibrated(state: State) -> State:
    """A state without calibration, such as training begins with."""
    kept = {k: v for k, v in state.likelihood.items() if k not in CALIBRATION}
    return replace(state, likelihood=kept)
