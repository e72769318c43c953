"""Methods in closed form: no gradients, no learning rate."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from bayesrule.curvature import Innovations
from bayesrule.expectations import Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._settings import Settings
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import FanIn, GaussianFamily
from bayesrule.rules import Conditioning


def tagi(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    gain: float | FanIn = 1.0,
    activations: Activations | None = None,
    rule: Conditioning | None = None,
    **settings: Unpack[Settings],
) -> Learner:
    """Tractable approximate Gaussian inference: closed form, no gradients, no learning rate.

    The first belief has the module's own weights as means and `gain / √fan_in` as standard
    deviations; Goulet, Nguyen & Amiri (2021).
    """
    moments = Moments(activations or MomentMatched())
    spread = gain if isinstance(gain, FanIn) else FanIn(gain, gain, gain)
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(spread=spread),
        expectation=moments,
        curvature=Innovations(),
        rule=rule or Conditioning(),
        predictive=moments,
        **settings,
    )
