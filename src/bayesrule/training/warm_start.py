"""Where training begins: at the most probable weights, for methods that learn their spread best."""

from __future__ import annotations

from dataclasses import replace

import torch

from bayesrule.curvature import NoCurvature
from bayesrule.expectations import AtMean
from bayesrule.learner import Learner
from bayesrule.matrices import Isotropic
from bayesrule.methods.points import MAP_RATE, adam_steps
from bayesrule.posteriors import GaussianFamily
from bayesrule.tensors.network import copies
from bayesrule.types import State


def beginning(learner: Learner) -> Learner:
    """The learner of the most probable weights: the same module, likelihood, data and prior.

    It is `map`. Adam finds these in fewer steps than natural gradients at weight draws, whose noise
    is large as long as nothing is known; and the first look at the loss's curvature is then taken
    where it counts. A prior that is a belief of earlier data keeps the shape of that belief.
    """
    about_zero = isinstance(learner.prior_precision, float)
    return Learner(
        learner.model,
        learner.likelihood,
        num_data=int(learner.num_data),
        posterior=GaussianFamily(Isotropic()) if about_zero else learner.family,
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=adam_steps(MAP_RATE),
        prior=learner.prior,
        temperature=1.0,
    )


@torch.inference_mode(False)
def started_at(learner: Learner, found: State, seed: int = 0) -> State:
    """The first state of a learner at the mean, noise and buffers that another one has found."""
    mean, weight = copies(dict(found.posterior.mean)), learner.weight
    posterior = learner.family.init(mean, weight=weight, prior=learner.prior)
    return replace(
        learner.init(seed),
        posterior=posterior,
        rule=learner.rule.init(learner.family, posterior, weight),
        likelihood=copies(found.likelihood),
        buffers=copies(found.buffers),
    )
