"""Which learners can step many nets together, and why others cannot."""

from __future__ import annotations

from torch import nn

from bayesrule.expectations import Look
from bayesrule.learner import Learner
from bayesrule.tensors import distributed
from bayesrule.tensors.chain import Chain


def obstacle(learner: Learner) -> str | None:
    """Why several nets of a learner cannot be stepped together; None if they can.

    >>> from bayesrule import BernoulliLikelihood, noisy_kfac
    >>> obstacle(noisy_kfac(nn.Linear(4, 1), BernoulliLikelihood(), num_data=100))
    'targets drawn by BernoulliLikelihood'
    """
    if distributed.world_size() > 1:
        return "several machines that work on each step"
    parts = learner.family, learner.expectation, learner.curvature
    if learner.expectation.look is Look.MOMENTS and not learner.curvature.whole_data:
        return None
    reasons = (
        learner.family.stack_obstacle,
        learner.expectation.stack_obstacle,
        learner.curvature.stack_obstacle,
        learner.rule.stack_obstacle(*parts),
        _likelihood(learner),
        _module(learner),
    )
    return next((reason for reason in reasons if reason is not None), None)


def ragged_obstacle(learner: Learner) -> str | None:
    """Why batches of a stack cannot differ in size; None if they can."""
    if not learner.curvature.whole_data:
        return "one example alone is conditioned on in another way than several"
    return "batch norm mixes the examples of a batch" if learner.network.averaged() else None


def layered(learner: Learner) -> bool:
    """Whether the curvature is estimated layer by layer."""
    structure = learner.family.structure
    return structure is not None and structure.layered and learner.curvature.needs_rows


def _likelihood(learner: Learner) -> str | None:
    likelihood = learner.likelihood
    state = likelihood.init(next(iter(learner.network.params().values())))
    # Besides learned noise, a state may hold a schedule, which is the same for all nets.
    if not likelihood.learns and not set(state) <= {"step", "std"}:
        return f"the likelihood {type(likelihood).__name__}, which learns something itself"
    if "sample" in learner.curvature.asks and not likelihood.stacked_sampling:
        return f"targets drawn by {type(likelihood).__name__}"
    return None


def _module(learner: Learner) -> str | None:
    network = learner.network
    for part in network.model.modules():
        if isinstance(part, nn.RNNBase):
            return f"{type(part).__name__}, over which torch does not map"
    if not learner.curvature.needs_rows or Chain.of(network) is not None:
        return None
    if layered(learner):
        return "factors of layers in a module that is no chain of linear layers and activations"
    if network.averaged():
        return "batch norm, which mixes the examples whose gradients are asked for one by one"
    for part in network.model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and part.training:
            return "dropout, which would differ where gradients of single examples are taken"
    return None
