"""Predictions from a belief: by weight draws, at the mean, or linearised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bayesrule.curvature import Problem, Recording
from bayesrule.expectations import AtMean, Expectation, Look, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood, Marginal
from bayesrule.likelihoods._base import one_vector_per_output
from bayesrule.moments import Propagation
from bayesrule.posteriors import Family, Point
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import Batch, Params, State


@dataclass(frozen=True)
class Probit:
    """The closed-form link `softmax(m / √(1 + π v / 8))`; MacKay (1992).

    Likelihoods that have no closed form take draws instead, as `MonteCarlo()` does.
    """

    num: ClassVar[int] = 100

    def draws(self, likelihood: Likelihood) -> bool:
        """Whether the outputs are drawn, and not integrated out."""
        return likelihood.lacks("marginal") is not None


@dataclass(frozen=True)
class MonteCarlo:
    """The link by `num` draws of the outputs.

    Likelihoods whose closed form is not the probit link (Gaussian ones, for example) keep theirs.
    """

    num: int = 100

    def draws(self, likelihood: Likelihood) -> bool:
        """Whether the outputs are drawn, and not integrated out."""
        return likelihood.probit_marginal or likelihood.lacks("marginal") is not None


@dataclass(frozen=True)
class Linearised:
    """The network linearised at the mean: `f ~ N(f(m), J S⁻¹ Jᵀ)`, a generalised linear model.

    `link` says how Gaussian outputs become classes or counts; real-valued targets need none.
    `chunk` inputs are worked on at a time.
    """

    link: Probit | MonteCarlo = Probit()
    chunk: int = 128

    linearised = True

    def obstacle(self, family: Family) -> str | None:
        """Why the beliefs of a family cannot be linearised, in words; None if they can."""
        return None if family.linearisable else _not_linearisable(repr(family))


def _not_linearisable(what: str) -> str:
    return f"A linearised prediction needs a Gaussian, got {what}; use Draws(num)."


How = Expectation | Linearised


def predict(
    learner: Learner,
    state: State,
    x: Any,
    how: How | None = None,
    *,
    seed: int = 0,
    batch_size: int = 4096,
) -> Prediction:
    """What a learned belief says of new inputs `x` (n, *), a tensor or an array.

    `how` is `Draws(num)`, `AtMean()`, `Linearised()` or `Moments()`; without it the learner's own
    way is taken.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, ridge
    >>> learner = ridge(nn.Linear(1, 1), GaussianLikelihood(noise=1.0), num_data=2)
    >>> batch = torch.tensor([[-1.0], [1.0]]), torch.tensor([-1.0, 1.0])
    >>> state, _ = learner.step(learner.init(), batch)
    >>> p = predict(learner, state, torch.zeros(1, 1))
    >>> p.epistemic, p.aleatoric
    (tensor([[0.3333]]), tensor([[1.]]))
    """
    how = how or learner.predictive  # type: ignore[assignment]
    inputs = as_inputs(x, state)
    if num_examples(inputs) == 0:
        raise ValueError("There are no inputs to predict.")
    if isinstance(how, Linearised):
        return _linearised(learner, state, inputs, how, seed)
    if not isinstance(how, Expectation):
        raise TypeError(f"how takes Draws(num), AtMean(), Linearised() or Moments(), got {how!r}.")
    if how.look is Look.MOMENTS:
        return _moments(learner, state, inputs, how, batch_size)  # type: ignore[arg-type]
    outputs = outputs_at(learner, state, inputs, how, seed=seed, batch_size=batch_size)
    return Prediction.mixture(learner.likelihood.distribution(outputs, state.likelihood))


def as_inputs(x: Any, state: State) -> Inputs:
    """Arrays and lists as tensors on the weights' device; floating ones get the weights' type."""
    if isinstance(x, tuple):
        return tuple(_as_tensor(part, state) for part in x)
    return _as_tensor(x, state)


def _as_tensor(x: Any, state: State) -> Tensor:
    like = state.posterior.any_tensor
    if isinstance(x, np.ndarray) and (not x.flags.writeable or min(x.strides, default=0) < 0):
        x = x.copy()  # torch can only share memory that it may write to, in increasing order
    tensor = torch.as_tensor(x, device=like.device)
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


@torch.no_grad()
def outputs_at(
    learner: Learner,
    state: State,
    x: Inputs,
    how: Expectation,
    *,
    seed: int = 0,
    batch_size: int = 4096,
) -> Tensor:
    """The network's outputs at each point of an expectation, (K, n, *)."""
    generator = seeds.generator(state.posterior.device, seed, 0)
    starts = range(0, num_examples(x), batch_size)
    outputs = []
    for point in how.points(state.posterior, generator, tracked=False):
        weights = point.params
        parts = [
            learner.network(
                weights, state.buffers, take(x, slice(i, i + batch_size)), training=False
            )
            for i in starts
        ]
        outputs.append(torch.cat(parts))
    return torch.stack(outputs)


def elbo(
    learner: Learner,
    state: State,
    batch: Batch,
    how: Expectation | None = None,
    *,
    seed: int = 0,
) -> Tensor:
    """`E_q[log p(y | f)] − T · KL(q ‖ prior)` of the whole data set given as one batch."""
    x, y = batch
    outputs = outputs_at(learner, state, as_inputs(x, state), how or AtMean(), seed=seed)
    likelihood = learner.likelihood
    each = [likelihood.log_prob(f, y, state.likelihood).sum() for f in outputs]
    return torch.stack(each).mean() - learner.temperature * learner.divergence(state)


def linearised_outputs(
    learner: Learner, state: State, x: Inputs, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """Mean (n, C) and covariance (n, C, C) of the outputs of the linearised network."""
    if not state.posterior.linearisable:
        raise TypeError(_not_linearisable(type(state.posterior).__name__))
    # A caller's no_grad would leave no slopes, and so no variance at all.
    with torch.inference_mode(False), torch.enable_grad():
        parts = [
            _linearised_chunk(learner, state, _recordable(take(x, slice(i, i + chunk))))
            for i in range(0, num_examples(x), chunk)
        ]
    means, covariances = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(covariances)


def _recordable(x: Inputs) -> Inputs:
    """Inputs that a backward pass may keep, which those made in inference mode are not."""
    if isinstance(x, tuple):
        return tuple(part.clone() if part.is_inference() else part for part in x)
    return x.clone() if x.is_inference() else x


def _linearised_chunk(learner: Learner, state: State, x: Inputs) -> tuple[Tensor, Tensor]:
    generator = torch.Generator()
    problem = Problem(
        learner.network,
        learner.likelihood,
        state.likelihood,
        state.buffers,
        x,
        torch.empty(0),
        generator,
        training=False,
    )
    recording = Recording(problem, Point(state.posterior.mean))
    outputs = recording.outputs.detach()
    rows, _ = recording.backward(one_vector_per_output(torch.ones_like(outputs)), gradient=False)
    covariance = state.posterior.precision.output_covariance(rows)  # type: ignore[attr-defined]
    # Where all weights are known, there is one zero for all of it.
    size = outputs[0].numel()
    return outputs, covariance.to(outputs).expand(len(outputs), size, size)


def independent_variances(state: State) -> Params:
    """The variances of weights that are independent Gaussians, which moment propagation needs."""
    if state.posterior.independent:
        return state.posterior.uncertain_variance()
    raise TypeError(
        "Moment propagation is for independent Gaussian weights; it would lose what "
        f"{state.posterior.words()} knows of how they vary together. Use Linearised() or "
        "Draws(num) to predict; inputs and hidden units can be inferred from tagi or another "
        "diagonal belief."
    )


@torch.no_grad()
def moment_outputs(
    learner: Learner, state: State, x: Inputs, how: Moments, batch_size: int = 4096
) -> tuple[Tensor, Tensor]:
    """Mean and variance (n, *) of the outputs by moment propagation."""
    variance = independent_variances(state)
    found = []
    for start in range(0, num_examples(x), batch_size):
        propagation = Propagation(learner.network, how.activations, record=False)
        part, buffers = take(x, slice(start, start + batch_size)), dict(state.buffers)
        mean = state.posterior.mean
        found.append(propagation.forward(mean, variance, buffers, part, training=False))
    return torch.cat([f.centre for f in found]), torch.cat([f.variance for f in found])


def _moments(
    learner: Learner, state: State, x: Inputs, how: Moments, batch_size: int
) -> Prediction:
    mean, variance = moment_outputs(learner, state, x, how, batch_size)
    return closed_form(learner, state, mean, variance)


def closed_form(learner: Learner, state: State, mean: Tensor, variance: Tensor) -> Prediction:
    """The prediction where the outputs are Gaussian and the likelihood can integrate them out."""
    return _of_marginal(learner.likelihood.marginal(mean, variance, state.likelihood))


def _of_marginal(marginal: Marginal) -> Prediction:
    """A prediction of one component, with both parts of its variance."""
    return Prediction(
        components=marginal.distribution[None],
        mean=marginal.mean,
        epistemic=marginal.epistemic,
        aleatoric=marginal.aleatoric,
        conditional_means=marginal.mean[None],
    )


def _linearised(
    learner: Learner, state: State, x: Inputs, how: Linearised, seed: int
) -> Prediction:
    mean, covariance = linearised_outputs(learner, state, x, how.chunk)
    likelihood = learner.likelihood
    if not how.link.draws(likelihood):
        return _of_marginal(likelihood.joint_marginal(mean, covariance, state.likelihood))
    outputs = _gaussian_draws(mean, covariance, how.link.num, seed)
    return Prediction.mixture(likelihood.distribution(outputs, state.likelihood))


def _gaussian_draws(mean: Tensor, covariance: Tensor, num: int, seed: int) -> Tensor:
    """`num` draws (num, n, *) of outputs N(mean, covariance)."""
    flat = mean.reshape(len(mean), -1)
    jitter = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-12)
    eye = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    root = torch.linalg.cholesky(covariance + jitter[:, None, None] * eye)
    generator = seeds.generator(mean.device, seed, 0)
    white = torch.empty(num, *flat.shape, dtype=flat.dtype, device=flat.device)
    draws = flat + (root @ white.normal_(generator=generator).unsqueeze(-1)).squeeze(-1)
    return draws.reshape(num, *mean.shape)
