"""Learning along a series, a step at a time, with recurrent states that are carried on.

The module takes a step's inputs and its own former state, and returns outputs and the new state:

    class Forecaster(nn.Module):
        def forward(self, x, state=None):
            out, state = self.lstm(x, state)
            return self.head(out[:, -1]), state

Weights and states are Gaussian. Each observation moves both: a state with the innovation (δ, η)
becomes `h̄ + s δ`, `s + s² η`, and the next step starts from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Problem
from bayesrule.expectations import Look
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import Conditioned
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor, Propagation
from bayesrule.predicting.predict import as_inputs, closed_form
from bayesrule.predicting.prediction import Prediction
from bayesrule.sequences.carried import apart, expected, fill, learned, mapped
from bayesrule.tensors import distributed, vectors
from bayesrule.types import Info, Local, State


@dataclass(frozen=True)
class Place:
    """All that the next step of a series needs: the weights' state and where the series stands.

    `carried` is the module's recurrent state as it returns it, with Gaussians in it; None before
    the first step. `target` is what is known of the last target: observed, or else predicted.
    """

    weights: State
    carried: Any = None
    target: GaussianTensor | None = None


@dataclass(frozen=True)
class Seen:
    """A step that was gone: what a person wants to see of it, and what `rts_smoother` needs.

    `prediction` was made before the target was looked at; `log_prob` (B,) is that of the target.
    `carried` is the state after the step, `asked` tells which inputs stood for the last target.
    """

    prediction: Prediction
    log_prob: Tensor
    before: Place
    carried: Any
    x: Tensor
    y: Tensor
    asked: Tensor | None
    info: Info | None = None


class Online:
    """Goes along one series, or several side by side, with a learner that carries moments.

    A missing target is NaN: it teaches nothing, and the states roll on. NaN in the inputs stands
    for the last target, as it was observed or else as it was predicted, with its uncertainty.
    The module runs in evaluation mode.

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
    >>> place = online.init(seed=0)
    >>> for y in (0.1, 0.3, 0.2):
    ...     x = torch.zeros(1, 1) if place.target is None else torch.full((1, 1), torch.nan)
    ...     place, seen = online.step(place, (x, torch.tensor([[y]])))
    >>> ahead = online.forecast(place, [torch.full((1, 1), torch.nan)] * 3)
    >>> len(ahead), ahead[0].interval(0.9)[0].shape
    (3, torch.Size([1, 1]))
    """

    def __init__(self, learner: Learner) -> None:
        if learner.expectation.look is not Look.MOMENTS:
            raise TypeError(
                "Online learning with carried states needs a learner that propagates moments, "
                f"such as tagi(...); this one takes {type(learner.expectation).__name__}()."
            )
        self.learner = learner
        self._activations = learner.expectation.activations

    def init(self, seed: int = 0) -> Place:
        """The place before the first step of the first series."""
        return Place(self.learner.init(seed))

    def restart(self, place: Place, carried: Any = None) -> Place:
        """The same weights before a series; its first state may be known (`Smoothed.first`)."""
        return Place(place.weights, carried)

    def predict(self, place: Place, x: Any) -> Prediction:
        """What is believed of the next target, given its inputs."""
        return self.forecast(place, [x])[0]

    def forecast(self, place: Place, inputs: Iterable[Any]) -> list[Prediction]:
        """Several steps ahead without targets; NaN in the inputs stands for the last prediction."""
        found = []
        for x in inputs:
            given, _ = self._filled(place, x)
            _, outputs, carried = self.run(place, given, record=False)
            prediction = self.prediction(place, outputs.centre, outputs.variance)
            found.append(prediction)
            place = Place(place.weights, mapped(carried, apart), expected(prediction))
        return found

    def step(self, place: Place, batch: tuple[Any, Any]) -> tuple[Place, Seen]:
        """Conditions weights and states on the next inputs and targets, and moves on."""
        return self._advance(place, batch, learn=True)

    def observe(self, place: Place, batch: tuple[Any, Any]) -> tuple[Place, Seen]:
        """Conditions the states alone, with the belief about the weights as it is."""
        return self._advance(place, batch, learn=False)

    @torch.no_grad()
    def _advance(self, place: Place, batch: tuple[Any, Any], *, learn: bool) -> tuple[Place, Seen]:
        x, asked = self._filled(place, batch[0])
        y = as_inputs(batch[1], place.weights)
        assert isinstance(y, Tensor)
        way, outputs, carried = self.run(place, x)
        found = self.conditioned(place, outputs, y)
        innovations = way.back(outputs, found.delta, found.eta)
        prediction = self.prediction(place, outputs.centre, outputs.variance)
        weights, info = place.weights, None
        if learn:
            weights, info = self._learn(weights, found, innovations, len(outputs.centre))
        after = Place(weights, mapped(carried, learned), expected(prediction, y))
        seen = Seen(prediction, found.log_prob, place, after.carried, x, y, asked, info)
        return after, seen

    def run(
        self, place: Place, x: Tensor, *, record: bool = True
    ) -> tuple[Propagation, GaussianTensor, Any]:
        """A pass through the module: its outputs and its state, which is not conditioned yet."""
        posterior = place.weights.posterior
        way = Propagation(self.learner.network, self._activations, record=record)
        variance = posterior.uncertain_variance()
        given = x if place.carried is None else (x, place.carried)
        buffers = dict(place.weights.buffers)
        with torch.no_grad():
            found = way.run(posterior.mean, variance, buffers, given, training=False)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                "The module's forward(x, state=None) must return two things, outputs and the new "
                f"state; it returned a {type(found).__name__}."
            )
        if not isinstance(found[0], GaussianTensor):
            raise TypeError(
                "The module's outputs do not depend on its uncertain weights in a way that moment "
                f"propagation can see: they are a {type(found[0]).__name__}."
            )
        return way, found[0], found[1]

    def _filled(self, place: Place, x: Any) -> tuple[Tensor, Tensor | None]:
        """The inputs with the last target in place of NaN, and where that is."""
        if isinstance(x, GaussianTensor):
            return x, None
        given = as_inputs(x, place.weights)
        assert isinstance(given, Tensor)
        missing = given.isnan()
        if not missing.any():
            return given, None
        return fill(given, missing, place.target), missing

    def conditioned(self, place: Place, outputs: GaussianTensor, y: Tensor) -> Conditioned:
        noise, weight = place.weights.likelihood, 1.0 / self.learner.temperature
        found = self.learner.likelihood.condition(outputs.centre, outputs.variance, y, noise)
        return replace(found, delta=found.delta * weight, eta=found.eta * weight)

    def prediction(self, place: Place, mean: Tensor, variance: Tensor) -> Prediction:
        return closed_form(self.learner, place.weights, mean, variance)

    def _learn(
        self, state: State, found: Conditioned, innovations: Any, size: int
    ) -> tuple[State, Info]:
        delta, eta = (vectors.scale(part, -1.0) for part in innovations)
        problem = self._problem(state, distributed.count_over_ranks(size, found.delta.device))
        statistics = vectors.scale(found.statistics, problem.scale) if found.statistics else {}
        local = Local(-found.log_prob.sum(), delta, DiagonalMatrix(eta), statistics)
        local = distributed.sum_over_ranks(local)
        # Asking would make a GPU wait.
        if local.loss.device.type == "cpu" and not (local.loss + found.delta.sum()).isfinite():
            raise FloatingPointError(
                "The step did not end in finite numbers. Standardised series, a smaller gain or "
                "MomentMatched() activations help."
            )
        return self.learner.absorb(state, local, problem)

    def _problem(self, state: State, count: int) -> Problem:
        """What a step is scaled by; what it looks at was worked out already."""
        learner, nothing = self.learner, state.posterior.any_tensor.new_empty(0)
        return Problem(
            learner.network,
            learner.likelihood,
            state.likelihood,
            dict(state.buffers),
            nothing,
            nothing,
            torch.Generator(),
            weight=learner.weight,
            count=count,
            temperature=learner.temperature,
        )
