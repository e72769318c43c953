"""The warm start: training that begins at the most probable weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from bayesrule.curvature import NoCurvature
from bayesrule.expectations import AtMean
from bayesrule.learner import Learner
from bayesrule.matrices import Isotropic
from bayesrule.methods.points import adam_steps
from bayesrule.posteriors import GaussianFamily
from bayesrule.tensors.network import copies
from bayesrule.types import State


def beginning(learner: Learner) -> Learner:
    """The learner `map` of the most probable weights: same module, likelihood, data and prior.

    Adam finds these weights in fewer steps than natural gradients at weight draws, which are noisy
    while the posterior is wide; and curvature is then first measured where it counts. A prior that
    is the posterior of earlier data keeps the family of that posterior.
    """
    about_zero = isinstance(learner.prior_precision, float)
    return Learner(
        learner.model,
        learner.likelihood,
        num_data=int(learner.num_data),
        posterior=GaussianFamily(Isotropic()) if about_zero else learner.family,
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=adam_steps(learner.model),
        prior=learner.prior,
        temperature=1.0,
    )


@torch.inference_mode(False)
def started_at(learner: Learner, state: State, seed: int = 0) -> State:
    """The initial state of a learner, at the mean, noise and buffers of another learner's state."""
    mean, weight = copies(dict(state.posterior.mean)), learner.weight
    posterior = learner.family.init(mean, weight=weight, prior=learner.prior)
    return replace(
        learner.init(seed),
        posterior=posterior,
        rule=learner.rule.init(learner.family, posterior, weight),
        likelihood=copies(state.likelihood),
        buffers=copies(state.buffers),
    )
