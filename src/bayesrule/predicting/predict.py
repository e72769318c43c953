"""Predictions from a posterior: by weight draws, at its mean, linearised, or by moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bayesrule.curvature import Problem, Recording
from bayesrule.expectations import Draws, Expectation, Look, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import one_vector_per_output
from bayesrule.likelihoods._weighted import split, times
from bayesrule.moments import GaussianTensor, Propagation, over_inputs
from bayesrule.posteriors import Family, Point
from bayesrule.predicting.at_weights import NOTHING, outputs_at, pieces
from bayesrule.predicting.outputs import Outputs
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.autocast import for_modules_only
from bayesrule.tensors.inputs import Inputs, mapped, pairs, streamed
from bayesrule.tensors.unfit import check_belief, check_finite, recordable
from bayesrule.types import Params, State

_CHUNK = 4096


@dataclass(frozen=True)
class Probit:
    """The closed-form link `softmax(m / √(1 + π v / 8))`; MacKay (1992).

    Likelihoods that have no closed form take draws instead, as `MonteCarlo()` does.
    """

    num: ClassVar[int] = 100
    instead_of_probit: ClassVar[bool] = False


@dataclass(frozen=True)
class MonteCarlo:
    """The link by `num` draws of the outputs.

    Likelihoods whose closed form is not the probit link (Gaussian ones, for example) keep theirs.
    """

    num: int = 100
    instead_of_probit: ClassVar[bool] = True


@dataclass(frozen=True)
class Linearised:
    """The network linearised at the mean: `f ~ N(f(m), J S⁻¹ Jᵀ)`, a generalised linear model.

    `link` says how Gaussian outputs become classes or counts; real-valued targets need none.
    The Jacobians of `chunk` inputs are computed at a time.
    """

    link: Probit | MonteCarlo = Probit()
    chunk: int = 128

    linearised = True

    def obstacle(self, family: Family) -> str | None:
        """Why a family allows no linearised predictions, in words; None if it does."""
        return None if family.linearisable else _not_linearisable(repr(family))


def _not_linearisable(what: str) -> str:
    return f"A linearised prediction needs a Gaussian, got {what}; use Draws(num)."


How = Expectation | Linearised
States = State | Sequence[State]
"""A state, or those of an ensemble: trainings of one learner that have an equal say."""


def predict(
    learner: Learner,
    state: States,
    x: Any,
    how: How | None = None,
    *,
    seed: int = 0,
    batch_size: int = _CHUNK,
) -> Prediction:
    """The predictive distribution at new inputs `x` (n, *), a tensor or an array.

    Several inputs are a tuple, inputs by name a dict, as the module takes them. A Dataset, a loader
    or an iterator is read a batch at a time; it gives inputs alone, or pairs (x, y), whose targets
    are ignored. `how` is `Draws(num)`, `AtMean()`, `Linearised()` or `Moments()`; None takes the
    learner's default. Several states are an ensemble: its prediction is the equal mixture of
    theirs.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, ridge
    >>> learner = ridge(nn.Linear(1, 1), GaussianLikelihood(noise=1.0), num_data=2)
    >>> batch = torch.tensor([[-1.0], [1.0]]), torch.tensor([-1.0, 1.0])
    >>> state, _ = learner.step(learner.init(), batch)
    >>> p = predict(learner, state, torch.zeros(1, 1))
    >>> p.epistemic, p.aleatoric
    (tensor([[0.3333]]), tensor([[1.]]))
    """
    members = as_states(state)
    if len(members) > 1 and isinstance(x, Iterator):
        raise TypeError(
            f"Each of the {len(members)} members of an ensemble reads the inputs, and an iterator "
            "gives them once. Give a loader, a Dataset or tensors."
        )
    return Prediction.pooled(
        [_predict(learner, member, x, how, seed, batch_size) for member in members]
    )


@for_modules_only
def _predict(
    learner: Learner, state: State, x: Any, how: How | None, seed: int, batch_size: int
) -> Prediction:
    outputs = believed_outputs(learner, state, x, how, seed=seed, batch_size=batch_size)
    return outputs.prediction(learner.likelihood, state.likelihood)


def as_states(state: States) -> Sequence[State]:
    """The states of an ensemble; a single state is an ensemble of one."""
    members = [state] if isinstance(state, State) else [*state]
    if not members:
        raise ValueError("An ensemble has at least one state, got none.")
    return members


@for_modules_only
def believed_outputs(
    learner: Learner,
    state: State,
    x: Any,
    how: How | None = None,
    *,
    seed: int = 0,
    batch_size: int = _CHUNK,
) -> Outputs:
    """The distribution of the network's outputs; arguments as for `predict`."""
    how = how or learner.predictive  # type: ignore[assignment]
    state.check()
    # The caller may pass anything, and other types have no abilities to ask for.
    if not isinstance(how, Expectation | Linearised):
        raise TypeError(f"how takes Draws(num), AtMean(), Linearised() or Moments(), got {how!r}.")
    if isinstance(how, Expectation):
        how = how.as_learned(learner.expectation)
    parts = [
        _outputs_of(learner, state, as_inputs(part, state), how, seed, batch_size)
        for part in streamed(x, batch_size)
    ]
    if not parts:
        raise ValueError(NOTHING)
    outputs = Outputs.joined(parts)
    return _linked(learner, outputs, how.link, seed) if isinstance(how, Linearised) else outputs


def _outputs_of(
    learner: Learner, state: State, inputs: Inputs, how: How, seed: int, batch_size: int
) -> Outputs:
    """The outputs of one batch, as draws or, where linearised or by moments, as a Gaussian."""
    check_finite("The inputs", inputs)
    if isinstance(how, Linearised):
        return Outputs(*linearised_outputs(learner, state, inputs, how.chunk), joint=True)
    if how.look is Look.MOMENTS:
        return _moments(learner, state, inputs, how, batch_size)  # type: ignore[arg-type]
    outputs = outputs_at(learner, state, inputs, how, seed=seed, batch_size=batch_size)
    check_belief(outputs, lambda: state.posterior.mean)
    return Outputs(outputs)


def as_inputs(x: Any, state: State) -> Inputs:
    """Arrays and lists as tensors on the weights' device, floating ones in the weights' type."""
    like = state.posterior.any_tensor

    def placed(part: Any) -> Tensor:
        tensor = as_tensor(part, like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor

    return placed(x) if isinstance(x, Tensor) else mapped(x, placed)


def as_tensor(x: Any, device: torch.device | None = None) -> Tensor:
    """`torch.as_tensor` for all arrays, which keeps subclasses of Tensor as they are."""
    if isinstance(x, Tensor):
        return x if device is None else x.to(device)
    if isinstance(x, np.ndarray) and (not x.flags.writeable or min(x.strides, default=0) < 0):
        x = x.copy()  # torch can only share memory that it may write to, in increasing order
    return torch.as_tensor(x, device=device)


def elbo(
    learner: Learner, state: State, batch: Any, how: Expectation | None = None, *, seed: int = 0
) -> Tensor:
    """The evidence lower bound `E_q[log p(y | f)] − T · KL(q ‖ prior)`, in nats.

    `batch` is the whole data set: a pair, a Dataset or a loader. `how` takes the expectation; None
    uses 100 weight draws. The KL includes that of a noise that is learned.
    """
    likelihood, total = learner.likelihood, torch.zeros(())
    for x, y in pairs(batch, _CHUNK):
        outputs = outputs_at(learner, state, as_inputs(x, state), how or Draws(100), seed=seed)
        targets, weight = split(likelihood.weighed(as_tensor(y, outputs.device)))
        log_probs = (likelihood.log_prob(f, targets, state.likelihood) for f in outputs)
        sums = [times(log_prob, weight).sum() for log_prob in log_probs]
        total = total.to(outputs) + torch.stack(sums).mean()
    return total - learner.temperature * learner.divergence(state)


def linearised_outputs(
    learner: Learner, state: State, x: Inputs, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """Mean (n, C) and covariance (n, C, C) of the outputs of the linearised network."""
    if not state.posterior.linearisable:
        raise TypeError(_not_linearisable(type(state.posterior).__name__))
    # Under a caller's no_grad there would be no Jacobian, and so no variance at all.
    with torch.inference_mode(False), torch.enable_grad():
        parts = [_linearised_chunk(learner, state, recordable(part)) for part in pieces(x, chunk)]
    means, covariances = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(covariances)


def _linearised_chunk(learner: Learner, state: State, x: Inputs) -> tuple[Tensor, Tensor]:
    parts = learner.network, learner.likelihood, state.likelihood, state.buffers
    problem = Problem(*parts, x, torch.empty(0), torch.Generator(), training=False)
    recording = Recording(problem, Point(state.posterior.mean))
    outputs = recording.outputs.detach()
    rows, _ = recording.backward(one_vector_per_output(torch.ones_like(outputs)), gradient=False)
    covariance = state.posterior.precision.output_covariance(rows)  # type: ignore[attr-defined]
    # Where all weights are known, the covariance is a single zero.
    size = outputs[0].numel()
    return outputs, covariance.to(outputs).expand(len(outputs), size, size)


def independent_variances(state: State) -> Params:
    """The variances of independent Gaussian weights, which moment propagation needs."""
    if state.posterior.independent:
        return state.posterior.uncertain_variance()
    raise TypeError(
        "Moment propagation is for independent Gaussian weights; it would lose what "
        f"{state.posterior.words()} knows of how they vary together. Use Linearised() or "
        "Draws(num) to predict; inputs and hidden units can be inferred from tagi or another "
        "diagonal belief."
    )


@torch.no_grad()
def _moments(learner: Learner, state: State, x: Inputs, how: Moments, batch_size: int) -> Outputs:
    mean, variance = state.posterior.mean, independent_variances(state)

    def run(part: Inputs) -> GaussianTensor:
        propagation = Propagation(learner.network, how.carried, record=False)
        return propagation.forward(mean, variance, dict(state.buffers), part, training=False)

    outputs = [over_inputs(run, part) for part in pieces(x, batch_size)]
    means, variances = zip(*outputs, strict=True)
    return Outputs(torch.cat(means), torch.cat(variances))


def _linked(learner: Learner, outputs: Outputs, link: Probit | MonteCarlo, seed: int) -> Outputs:
    """Gaussian outputs, or draws of them where the link asks for these or has no closed form."""
    likelihood = learner.likelihood
    drawn = link.instead_of_probit and likelihood.probit_marginal
    if not drawn and likelihood.lacks("marginal") is None:
        return outputs
    assert outputs.variance is not None
    return Outputs(gaussian_draws(outputs.values, outputs.variance, link.num, seed))


def gaussian_draws(mean: Tensor, covariance: Tensor, num: int, seed: int) -> Tensor:
    """`num` draws (num, n, *) of outputs N(mean, covariance)."""
    flat = mean.reshape(len(mean), -1)
    jitter = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    eye = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    root = torch.linalg.cholesky(covariance + jitter[:, None, None] * eye)
    generator = seeds.generator(mean.device, seed, 0)
    white = torch.empty(num, *flat.shape, 1, dtype=flat.dtype, device=flat.device)
    draws = flat + (root @ white.normal_(generator=generator)).squeeze(-1)
    return draws.reshape(num, *mean.shape)
