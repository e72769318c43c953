"""Which learners can take the steps of many nets together, and why others cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import nn, optim

from bayesrule.curvature import (
    GGN,
    Fisher,
    Hessian,
    NoCurvature,
    PerExample,
    Price,
    SecondOrder,
    SquaredGradient,
)
from bayesrule.execution.stacked.chain import Chain
from bayesrule.execution.stacked.problem import learns_noise
from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood
from bayesrule.matrices import BlockTridiagonal, Dense, Diagonal, Isotropic, Kronecker
from bayesrule.posteriors import GaussianFamily, KTiedFamily, MeanFieldFamily
from bayesrule.rules import Conditioning, Elbo, Natural, Noisy
from bayesrule.tensors import distributed

# Exact types: what somebody derives from them may ask for more.
_FIRST_ORDER = {NoCurvature, SquaredGradient}
_ROWS = {PerExample, GGN, Fisher}
# Structures with two factors for each layer.
_LAYERED = {Kronecker, BlockTridiagonal}
_CURVATURES = _FIRST_ORDER | _ROWS | {Price, Hessian, SecondOrder}
_DRAWS_TARGETS = {Fisher, SecondOrder}
_NORMAL_TARGETS = {GaussianLikelihood, HeteroscedasticLikelihood}
# Those that treat every number alone.
_OPTIMISERS = {
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam,
    optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD,
}  # fmt: skip


def obstacle(learner: Learner) -> str | None:
    """Why the steps of several nets of a learner cannot be taken together; None where they can.

    >>> from bayesrule import CategoricalLikelihood, noisy_kfac
    >>> obstacle(noisy_kfac(nn.Linear(4, 3), CategoricalLikelihood(), num_data=100))
    'targets drawn by CategoricalLikelihood'
    """
    if distributed.world_size() > 1:
        return "several machines that work on each step"
    if type(learner.rule) is Conditioning:
        return None
    for problem in (_belief(learner), _rule(learner), _points(learner), _likelihood(learner)):
        if problem is not None:
            return problem
    return _module(learner)


def ragged_obstacle(learner: Learner) -> str | None:
    """Why batches of a stack cannot differ in size; None where they can."""
    if type(learner.rule) is Conditioning:
        return "one example alone is conditioned on in another way than several"
    return "batch norm mixes the examples of a batch" if learner.network.averaged() else None


def layered(learner: Learner) -> bool:
    """Whether the curvature is looked at layer by layer."""
    family = learner.family
    known = isinstance(family, GaussianFamily) and type(family.structure) in _LAYERED
    return known and type(learner.curvature) in _ROWS


def _rule(learner: Learner) -> str | None:
    rule = learner.rule
    if type(rule) not in (Natural, Elbo, Noisy):
        return f"the rule {type(rule).__name__}"
    if isinstance(rule, Elbo) and math.isfinite(rule.clip):
        return "clip, which looks at the norm of a whole gradient"
    return _optimiser(rule.optimiser) if isinstance(rule, Elbo) else None


def _optimiser(given: Callable[..., optim.Optimizer]) -> str | None:
    made = given.func if isinstance(given, partial) else given
    if made in _OPTIMISERS:
        return None
    name = getattr(made, "__name__", repr(made))
    return f"the optimiser {name}, which may look at several numbers at once"


def _points(learner: Learner) -> str | None:
    curvature, name = learner.curvature, type(learner.curvature).__name__
    if type(learner.expectation) not in (AtMean, Draws):
        return f"the expectation {type(learner.expectation).__name__}"
    if type(curvature) not in _CURVATURES:
        return f"the curvature {name}"
    if isinstance(curvature, SecondOrder) and curvature != SecondOrder():
        return f"the curvature {curvature}"
    return None


def _belief(learner: Learner) -> str | None:
    family, kind = learner.family, type(learner.curvature)
    if type(family) in (MeanFieldFamily, KTiedFamily):
        return None
    if not isinstance(family, GaussianFamily):
        return f"the family {type(family).__name__}"
    structure, rule = type(family.structure), learner.rule
    if structure is Diagonal:
        return None
    # What is neither moved nor looked at may have any structure.
    fixed = isinstance(rule, Elbo) or (isinstance(rule, Natural) and rule.fixed_precision)
    unseen = structure is Isotropic or not learner.expectation.random
    if fixed and unseen and kind in _FIRST_ORDER:
        return None
    if structure is Dense and kind is not Price:
        return None
    if structure in _LAYERED and kind in _ROWS:
        return None
    return f"a covariance of the structure {structure.__name__}"


def _likelihood(learner: Learner) -> str | None:
    likelihood = learner.likelihood
    state = likelihood.init(next(iter(learner.network.params().values())))
    # Other than learned noise there are schedules, which are the same for all nets.
    if not learns_noise(likelihood) and not set(state) <= {"step", "std"}:
        return f"the likelihood {type(likelihood).__name__}, which learns something itself"
    if type(learner.curvature) in _DRAWS_TARGETS and type(likelihood) not in _NORMAL_TARGETS:
        return f"targets drawn by {type(likelihood).__name__}"
    return None


def _module(learner: Learner) -> str | None:
    network = learner.network
    for part in network.model.modules():
        if isinstance(part, nn.RNNBase):
            return f"{type(part).__name__}, over which torch does not map"
    if type(learner.curvature) not in _ROWS or Chain.of(network) is not None:
        return None
    if layered(learner):
        return "factors of layers in a module that is no chain of linear layers and activations"
    if network.averaged():
        return "batch norm, which mixes the examples whose gradients are asked for one by one"
    for part in network.model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and part.training:
            return "dropout, which would differ where gradients of single examples are taken"
    return None
