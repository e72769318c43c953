"""A Rauch-Tung-Striebel smoother through any module: earlier steps given later targets.

Let (δ₊, η₊) be the innovation of a state after a step by all later targets. The state before the
step moves by `s G δ₊`, where `s G` is the covariance of the two states: for a cell state `G = f̄`,
because `cov(c₋, c) = s_c₋ f̄`. The backward pass through the module computes just this, so the
smoother passes innovations from step to step. The target of the step itself leaves the share k of a
state's variance, so the later innovations enter as `k δ₊` and `k² η₊`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods import Marginal, NormalTargets
from bayesrule.moments import GaussianTensor, Innovation, innovation
from bayesrule.predicting.prediction import Prediction
from bayesrule.sequences.online import (
    Online,
    SeriesStep,
    leaves,
    mapped,
    moved,
    variance_share,
)


@dataclass(frozen=True)
class Smoothed:
    """Each step of a series given all of its targets.

    `predictions` are of the targets, `carried` are the recurrent states after each step; `first` is
    the state before the first step, where another pass over the series can start
    (`Online.restart`).
    """

    predictions: list[Prediction]
    carried: list[Any]
    first: Any


@dataclass(frozen=True)
class _Later:
    """Innovations by all later targets: of the states after a step, and of its missing target."""

    states: list[Innovation]
    target: Innovation | None = None


@torch.no_grad()
def rts_smoother(online: Online, steps: Sequence[SeriesStep]) -> Smoothed:
    """Smooths the steps of one series, given in order, from its end to its start.

    Each step uses the weights it was made with.
    """
    if not steps:
        raise ValueError("There are no steps to smooth.")
    predictions: list[Prediction] = []
    carried: list[Any] = []
    later = _Later([innovation(x) for x in leaves(steps[-1].carried)])
    for number in reversed(range(len(steps))):
        step = steps[number]
        if number + 1 < len(steps) and steps[number + 1].before.carried is not step.carried:
            raise ValueError(
                f"Step {number + 1} does not start where step {number} ended; rts_smoother takes "
                "the steps of one series in order."
            )
        carried.append(_shifted(step.carried, later.states))
        prediction, later = _smoothed(online, step, later)
        predictions.append(prediction)
    first = _shifted(steps[0].before.carried, later.states)
    return Smoothed(predictions[::-1], carried[::-1], first)


def _shifted(carried: Any, innovations: list[Innovation]) -> Any:
    remaining = iter(innovations)
    return mapped(carried, lambda x: moved(x, next(remaining)))


def _smoothed(online: Online, step: SeriesStep, later: _Later) -> tuple[Prediction, _Later]:
    """The smoothed target of a step, and innovations of the states before it by all targets."""
    propagation, outputs, state = online.run(step.before, step.x)
    conditioned = online.conditioned(step.before, outputs, step.y)
    propagation.tape.back(outputs, conditioned.delta, conditioned.eta)
    by_own = [innovation(x) for x in leaves(propagation.inputs)]
    pairs = zip(leaves(state), later.states, strict=True)
    on_states = [_left_by_own_target(x, lasting) for x, lasting in pairs]
    delta, eta, target = conditioned.delta, conditioned.eta, later.target
    if target is not None and target[0].shape != delta.shape:
        target = None  # the outputs of a heteroscedastic likelihood hold the noise too
    on_output = torch.zeros_like(delta), torch.zeros_like(delta)
    if target is not None:
        # A missing target is inferred from later steps, which had it as an input.
        missing = step.y.reshape(delta.shape).isnan()
        on_output = torch.where(missing, target[0], 0.0), torch.where(missing, target[1], 0.0)
    mean = outputs.centre + outputs.variance * (delta + on_output[0])
    share = variance_share(outputs.variance, eta + on_output[1])
    shift, spread = _through_states(online, step, later, variance_share(outputs.variance, eta))
    variance = (outputs.variance * share + spread).clamp_min(1e-6 * outputs.variance)
    prediction = online.prediction(step.before, mean + shift, variance)
    if target is not None:
        prediction = _with_noise(prediction, outputs.variance, on_output)
    return prediction, _before(step, by_own, _back(online, step, on_states, on_output))


def _left_by_own_target(x: GaussianTensor, lasting: Innovation) -> Innovation:
    """`k δ₊` and `k² η₊`, where k is the share of variance that the step's own target leaves."""
    share = variance_share(x.variance, innovation(x)[1])
    return share * lasting[0], share.square() * lasting[1]


def _with_noise(p: Prediction, variance: Tensor, on_output: Innovation) -> Prediction:
    """For a missing target `y = f + e` that is an input later: infers its noise e too.

    With r the variance of the noise, `ȳ += r δ` and `Var y += (2 s r + r²) η`.
    """
    noise, (delta, eta) = p.aleatoric, on_output
    mean = p.mean + noise * delta
    remaining = noise + (2.0 * variance + noise) * noise * eta
    total = (p.epistemic + remaining).clamp_min(1e-6 * noise)
    targets = NormalTargets(mean, total.sqrt())
    return Prediction.closed_form(Marginal(targets, mean, p.epistemic, total - p.epistemic))


def _through_states(
    online: Online, step: SeriesStep, later: _Later, share: Tensor
) -> tuple[Tensor, Tensor]:
    """How outputs move with the states: `Σ cov(f, h) δ₊` and `Σ cov(f, h)² η₊`.

    The covariances come from unit innovations of one output at a time.
    """
    shift, spread = torch.zeros_like(share), torch.zeros_like(share)
    for output in range(share[0].numel()):
        propagation, outputs, state = online.run(step.before, step.x)
        unit = share.new_zeros(share.shape)
        unit.view(len(share), -1)[:, output] = 1.0
        propagation.tape.back(outputs, unit, unit)
        for x, lasting in zip(leaves(state), later.states, strict=True):
            reach = innovation(x)[0] * x.variance
            if reach.any():
                shift += unit * _each_series(reach * lasting[0], share)
                spread += unit * _each_series(reach.square() * lasting[1], share)
    return shift * share, spread * share.square()


def _each_series(values: Tensor, like: Tensor) -> Tensor:
    """Sums a state (..., B, H) over all axes but that of the B series."""
    if values.ndim < 2 or values.shape[-2] != len(like):
        raise ValueError(
            "States hold the series along the last but one axis, as those of torch's recurrent "
            f"layers do; got a state of the shape {tuple(values.shape)} for {len(like)} series."
        )
    sums = values.sum(-1).reshape(-1, len(like)).sum(0)
    return sums.reshape(-1, *[1] * (like.ndim - 1))


def _back(
    online: Online, step: SeriesStep, on_states: list[Innovation], on_output: Innovation
) -> list[Innovation]:
    """Propagates innovations back through a step, to its uncertain inputs and states."""
    propagation, outputs, state = online.run(step.before, step.x)
    for x, by in zip(leaves(state), on_states, strict=True):
        if x.node is not None:
            x.node.learn(*by)
    propagation.tape.back(outputs, *on_output)
    return [innovation(x) for x in leaves(propagation.inputs)]


def _before(step: SeriesStep, by_own: list[Innovation], by_later: list[Innovation]) -> _Later:
    """Innovations of the states before a step, and of the target that was its input."""
    pairs = zip(by_own, by_later, strict=True)
    both = [(own[0] + later[0], own[1] + later[1]) for own, later in pairs]
    if not isinstance(step.x, GaussianTensor):
        return _Later(both)
    on_x, states = both[0], both[1:]
    if step.filled is None or step.before.target is None:
        return _Later(states)
    delta, eta = (_on_target(part, step.filled, step.before.target.centre) for part in on_x)
    return _Later(states, (delta, eta))


def _on_target(on_x: Tensor, filled: Tensor, like: Tensor) -> Tensor:
    """The entries of inputs that hold the last target, in the shape of the target."""
    rows = filled.flatten(1).any(1)
    on_target = like.new_zeros(len(like), like[0].numel())
    on_target[rows] = on_x[filled].reshape(-1, on_target.shape[1])
    return on_target.reshape(like.shape)
