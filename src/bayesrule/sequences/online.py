"""Learning along a series, step by step, with recurrent states that pass from step to step.

The module takes a step's inputs and its previous state, and returns outputs and the new state:

    class Forecaster(nn.Module):
        def forward(self, x, state=None):
            out, state = self.lstm(x, state)
            return self.head(out[:, -1]), state

Weights and states are Gaussian. Each observation updates both: a state with the innovation (δ, η)
becomes `h̄ + s δ`, `s + s² η`, and the next step starts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Problem
from bayesrule.expectations import Look
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import Conditioned
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor, Innovation, Propagation, innovation
from bayesrule.predicting.predict import as_inputs
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import distributed, vectors
from bayesrule.types import Info, Local, State


@dataclass(frozen=True)
class SeriesState:
    """What the next step of a series needs: the weights' state and the recurrent state.

    `carried` is the recurrent state as the module returns it, of Gaussian tensors; None before the
    first step. `target` is the last target, observed or, if missing, predicted.
    """

    weights: State
    carried: Any = None
    target: GaussianTensor | None = None


@dataclass(frozen=True)
class SeriesStep:
    """A step along a series: its results, and what `rts_smoother` needs.

    `prediction` was made before the target was observed; `log_prob` (B,) is that of the target.
    `carried` is the recurrent state after the step; `filled` marks the NaN inputs that the last
    target replaced.
    """

    prediction: Prediction
    log_prob: Tensor
    before: SeriesState
    carried: Any
    x: Tensor
    y: Tensor
    filled: Tensor | None
    info: Info | None = None


class Online:
    """Learns along one series, or several in parallel, with a learner that propagates moments.

    A missing target is NaN: nothing is learned from it, and the states continue. NaN in the inputs
    stands for the last target: its observed value or, if it was missing, its prediction with its
    uncertainty. The module runs in evaluation mode.

    >>> from torch import nn
    >>> import bayesrule as br
    >>> class Walk(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.cell, self.head = nn.GRUCell(1, 8), nn.Linear(8, 1)
    ...     def forward(self, x, state=None):
    ...         state = self.cell(x, state)
    ...         return self.head(state), state
    >>> online = Online(br.tagi(Walk(), br.GaussianLikelihood(noise=0.1), num_data=3))
    >>> series = online.init(seed=0)
    >>> for y in (0.1, 0.3, 0.2):
    ...     x = torch.zeros(1, 1) if series.target is None else torch.full((1, 1), torch.nan)
    ...     series, step = online.step(series, (x, torch.tensor([[y]])))
    >>> ahead = online.forecast(series, [torch.full((1, 1), torch.nan)] * 3)
    >>> len(ahead), ahead[0].interval(0.9)[0].shape
    (3, torch.Size([1, 1]))
    """

    def __init__(self, learner: Learner) -> None:
        if learner.expectation.look is not Look.MOMENTS:
            raise TypeError(
                "Online needs a learner that propagates moments, such as tagi(...); this one takes "
                f"{type(learner.expectation).__name__}()."
            )
        self.learner = learner
        self._activations = learner.expectation.activations

    def init(self, seed: int = 0) -> SeriesState:
        """The state before the first step of the first series."""
        return SeriesState(self.learner.init(seed))

    def restart(self, series: SeriesState, carried: Any = None) -> SeriesState:
        """The same weights before another series; `carried` may be `Smoothed.first`."""
        return SeriesState(series.weights, carried)

    def predict(self, series: SeriesState, x: Any) -> Prediction:
        """The prediction of the next target, given its inputs."""
        return self.forecast(series, [x])[0]

    def forecast(self, series: SeriesState, inputs: Iterable[Any]) -> list[Prediction]:
        """Predictions of several steps; NaN in the inputs stands for the last prediction."""
        predictions = []
        for x in inputs:
            x_filled, _ = self._filled(series, x)
            _, outputs, carried = self.run(series, x_filled, record=False)
            prediction = self.prediction(series, outputs.centre, outputs.variance)
            predictions.append(prediction)
            detached = mapped(carried, lambda h: GaussianTensor(h.centre, h.variance))
            series = SeriesState(series.weights, detached, _target_belief(prediction))
        return predictions

    def step(self, series: SeriesState, batch: tuple[Any, Any]) -> tuple[SeriesState, SeriesStep]:
        """Conditions weights and recurrent states on the next inputs and targets."""
        return self._advance(series, batch, learn=True)

    def observe(
        self, series: SeriesState, batch: tuple[Any, Any]
    ) -> tuple[SeriesState, SeriesStep]:
        """Conditions only the recurrent states; the posterior of the weights stays."""
        return self._advance(series, batch, learn=False)

    @torch.no_grad()
    def _advance(
        self, series: SeriesState, batch: tuple[Any, Any], *, learn: bool
    ) -> tuple[SeriesState, SeriesStep]:
        x, filled = self._filled(series, batch[0])
        y = as_inputs(batch[1], series.weights)
        assert isinstance(y, Tensor)
        propagation, outputs, carried = self.run(series, x)
        conditioned = self.conditioned(series, outputs, y)
        innovations = propagation.back(outputs, conditioned.delta, conditioned.eta)
        prediction = self.prediction(series, outputs.centre, outputs.variance)
        weights, info = series.weights, None
        if learn:
            weights, info = self._learn(weights, conditioned, innovations, len(outputs.centre))
        conditioned_on = mapped(carried, lambda h: moved(h, innovation(h)))
        after = SeriesState(weights, conditioned_on, _target_belief(prediction, y))
        log_prob = conditioned.log_prob
        return after, SeriesStep(prediction, log_prob, series, after.carried, x, y, filled, info)

    def run(
        self, series: SeriesState, x: Tensor, *, record: bool = True
    ) -> tuple[Propagation, GaussianTensor, Any]:
        """A pass through the module: its outputs and its new state, before conditioning."""
        belief = series.weights.posterior
        propagation = Propagation(self.learner.network, self._activations, record=record)
        variance = belief.uncertain_variance()
        inputs = x if series.carried is None else (x, series.carried)
        buffers = dict(series.weights.buffers)
        with torch.no_grad():
            returned = propagation.run(belief.mean, variance, buffers, inputs, training=False)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise TypeError(
                "The module's forward(x, state=None) must return two things, outputs and the new "
                f"state; it returned a {type(returned).__name__}."
            )
        if not isinstance(returned[0], GaussianTensor):
            raise TypeError(
                "Moment propagation did not reach the module's outputs: they are a "
                f"{type(returned[0]).__name__}, so they do not depend on its uncertain weights."
            )
        return propagation, *returned

    def _filled(self, series: SeriesState, x: Any) -> tuple[Tensor, Tensor | None]:
        """The inputs with the last target in place of NaN, and a mask of these places."""
        if isinstance(x, GaussianTensor):
            return x, None
        inputs = as_inputs(x, series.weights)
        assert isinstance(inputs, Tensor)
        missing = inputs.isnan()
        if not missing.any():
            return inputs, None
        return _fill(inputs, missing, series.target), missing

    def conditioned(self, series: SeriesState, outputs: GaussianTensor, y: Tensor) -> Conditioned:
        """The innovations of Gaussian outputs by targets y, divided by the temperature."""
        noise, weight = series.weights.likelihood, 1.0 / self.learner.temperature
        exact = self.learner.likelihood.condition(outputs.centre, outputs.variance, y, noise)
        return replace(exact, delta=exact.delta * weight, eta=exact.eta * weight)

    def prediction(self, series: SeriesState, mean: Tensor, variance: Tensor) -> Prediction:
        """The prediction of targets from Gaussian outputs."""
        noise = series.weights.likelihood
        return Prediction.closed_form(self.learner.likelihood.marginal(mean, variance, noise))

    def _learn(
        self, state: State, conditioned: Conditioned, innovations: Any, size: int
    ) -> tuple[State, Info]:
        learner, no_data = self.learner, state.posterior.any_tensor.new_empty(0)
        # The problem only scales the step; the innovations are already known, so it has no data.
        problem = Problem(
            *(learner.network, learner.likelihood, state.likelihood, dict(state.buffers)),
            *(no_data, no_data, torch.Generator()),
            weight=learner.weight,
            count=distributed.count_over_ranks(size, conditioned.delta.device),
            temperature=learner.temperature,
        )
        delta, eta = (vectors.scale(part, -1.0) for part in innovations)
        statistics = vectors.scale(conditioned.statistics, problem.scale)
        local = Local(-conditioned.log_prob.sum(), delta, DiagonalMatrix(eta), statistics)
        local = distributed.sum_over_ranks(local)
        # Only on the CPU: on a GPU this check would wait for all kernels.
        total = local.loss + conditioned.delta.sum()
        if total.device.type == "cpu" and not total.isfinite():
            raise FloatingPointError(
                "The step gave numbers that are not finite. Standardise the series, or use a "
                "smaller gain or MomentMatched() activations."
            )
        new, info = learner.absorb(state, local, problem)
        return new, learner.info(info.loss, new)


def leaves(state: Any) -> list[GaussianTensor]:
    """The Gaussian tensors of a state, which may be nested in tuples and lists."""
    if isinstance(state, tuple | list):
        return [leaf for part in state for leaf in leaves(part)]
    return [state] if isinstance(state, GaussianTensor) else []


def mapped(state: Any, function: Callable[[GaussianTensor], GaussianTensor]) -> Any:
    """A state with `function` applied to every Gaussian tensor."""
    if isinstance(state, tuple | list):
        return type(state)(mapped(part, function) for part in state)
    return function(state) if isinstance(state, GaussianTensor) else state


def variance_share(variance: Tensor, eta: Tensor) -> Tensor:
    """The share `1 + s η` of a variance that remains after an innovation, kept positive."""
    return (1.0 + variance * eta).clamp_min(1e-6)


def moved(x: GaussianTensor, by: Innovation) -> GaussianTensor:
    """`N(m + s δ, s + s² η)`, detached from the recorded pass."""
    delta, eta = by
    share = variance_share(x.variance, eta)
    return GaussianTensor(x.centre + x.variance * delta, x.variance * share)


def _target_belief(prediction: Prediction, y: Tensor | None = None) -> GaussianTensor | None:
    """The target if it was observed, else its prediction; None if it is not real-valued."""
    if not prediction.components.gaussian:
        return None
    mean, variance = prediction.mean, prediction.variance
    if y is None:
        return GaussianTensor(mean, variance)
    y = y.reshape(mean.shape)
    missing = y.isnan()
    return GaussianTensor(torch.where(missing, mean, y), torch.where(missing, variance, 0.0))


def _fill(x: Tensor, missing: Tensor, target: GaussianTensor | None) -> Tensor:
    """Inputs (B, *) with missing values replaced by the last targets, in order."""
    if target is None:
        raise ValueError(
            "NaN in the inputs stands for the last target, but there is none: this is the first "
            "step of the series, or the targets are not real numbers. Give the inputs as numbers."
        )
    size, count = target.centre[0].numel(), missing.flatten(1).sum(1)
    rows = count > 0
    if not (count[rows] == size).all():
        raise ValueError(
            f"NaN in the inputs stands for the last target, which is {size} number(s) for each "
            f"series; got {count.tolist()} NaN. Give other missing inputs as numbers."
        )
    mean, variance = x.clone(), torch.zeros_like(x)
    mean[missing] = target.centre[rows].flatten()
    variance[missing] = target.variance[rows].flatten()
    return GaussianTensor(mean, variance) if variance.any() else mean
