"""What later targets say of earlier steps: a Rauch-Tung-Striebel smoother through any module.

With the innovation (δ₊, η₊) of a state after a step, as all later targets have it, the state before
the step moves by `s G δ₊` where `s G` is their covariance: for a cell state `G = f̄`, because
`cov(c₋, c) = s_c₋ f̄`. That is the way of every innovation back through the module, so the smoother
sends them from step to step; what a step's own target has already taken from a state's variance,
the share `1 − k`, is no longer there for later ones, whose innovations count `k δ₊` and `k² η₊`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods import NormalTargets
from bayesrule.moments import GaussianTensor, Innovation
from bayesrule.predicting.prediction import Prediction
from bayesrule.sequences.carried import innovation, kept, leaves, mapped, moved
from bayesrule.sequences.online import Online, Seen


@dataclass(frozen=True)
class Smoothed:
    """What the whole series says of each of its steps.

    `predictions` are of the targets, `carried` the recurrent states after each step; `first` is the
    state before all of them, where another pass over the series can start (`Online.restart`).
    """

    predictions: list[Prediction]
    carried: list[Any]
    first: Any


@dataclass(frozen=True)
class _Later:
    """Innovations by all later targets: of the states after a step, and of its missing target."""

    states: list[Innovation | None] = field(default_factory=list)
    target: Innovation | None = None


@torch.no_grad()
def rts_smoother(online: Online, steps: Sequence[Seen]) -> Smoothed:
    """The steps of one series, in their order, looked at again from its end.

    Each step counts with the weights that it was taken with.
    """
    if not steps:
        raise ValueError("There are no steps to smooth.")
    predictions: list[Prediction] = []
    carried: list[Any] = []
    later = _Later([None] * len(leaves(steps[-1].carried)))
    for number in reversed(range(len(steps))):
        one = steps[number]
        if number + 1 < len(steps) and steps[number + 1].before.carried is not one.carried:
            raise ValueError(
                f"Step {number + 1} does not start where step {number} ended; smooth takes the "
                "steps of one series in the order in which they were taken."
            )
        carried.append(_shifted(one.carried, later.states))
        prediction, later = _smoothed(online, one, later)
        predictions.append(prediction)
    first = _shifted(steps[0].before.carried, later.states)
    return Smoothed(predictions[::-1], carried[::-1], first)


def _shifted(carried: Any, found: list[Innovation | None]) -> Any:
    each = iter(found)
    return mapped(carried, lambda x: moved(x, next(each)))


def _smoothed(online: Online, one: Seen, later: _Later) -> tuple[Prediction, _Later]:
    """A step's smoothed target, and what it and all later ones say of the states before it."""
    way, outputs, state = online.run(one.before, one.x)
    found = online.conditioned(one.before, outputs, one.y)
    way.tape.back(outputs, found.delta, found.eta)
    by_own = [innovation(x) for x in leaves(way.inputs)]
    ends = leaves(state)
    shares = [_share(x) for x in ends]
    on_states = [
        None if lasting is None else (share * lasting[0], share.square() * lasting[1])
        for share, lasting in zip(shares, later.states, strict=True)
    ]
    delta, eta = found.delta, found.eta
    target = later.target
    if target is not None and target[0].shape != delta.shape:
        target = None  # outputs that also tell the noise are not of the target's shape
    on_output = _on_output(target, one.y, delta)
    mean = outputs.centre + outputs.variance * (delta + on_output[0])
    share = kept(outputs.variance, eta + on_output[1])
    shift, spread = _through_states(online, one, later, kept(outputs.variance, eta))
    variance = (outputs.variance * share + spread).clamp_min(1e-6 * outputs.variance)
    prediction = online.prediction(one.before, mean + shift, variance)
    if target is not None:
        prediction = _with_noise(prediction, outputs.variance, on_output)
    return prediction, _before(one, by_own, _back(online, one, on_states, on_output))


def _share(x: GaussianTensor) -> Tensor:
    found = innovation(x)
    return torch.ones_like(x.centre) if found is None else kept(x.variance, found[1])


def _on_output(target: Innovation | None, y: Tensor, like: Tensor) -> Innovation:
    """What later steps, which took a missing target as an input, say of it."""
    if target is None:
        return torch.zeros_like(like), torch.zeros_like(like)
    missing = y.reshape(like.shape).isnan()
    return torch.where(missing, target[0], 0.0), torch.where(missing, target[1], 0.0)


def _with_noise(p: Prediction, variance: Tensor, on_output: Innovation) -> Prediction:
    """A missing target that is an input later: `y = f + e`, and its noise e is learned of too.

    With r the variance of the noise, `ȳ += r δ` and `Var y += (2 s r + r²) η`.
    """
    noise, (delta, eta) = p.aleatoric, on_output
    mean = p.mean + noise * delta
    left = noise + (2.0 * variance + noise) * noise * eta
    total = (p.epistemic + left).clamp_min(1e-6 * noise)
    parts = NormalTargets(mean[None], total.sqrt()[None])
    aleatoric = total - p.epistemic
    return replace(
        p, components=parts, mean=mean, aleatoric=aleatoric, conditional_means=mean[None]
    )


def _through_states(
    online: Online, one: Seen, later: _Later, share: Tensor
) -> tuple[Tensor, Tensor]:
    """How far outputs move with the states: `Σ cov(f, h) δ₊` and `Σ cov(f, h)² η₊`.

    The covariances come from unit innovations of one output at a time.
    """
    shift, spread = torch.zeros_like(share), torch.zeros_like(share)
    if all(lasting is None for lasting in later.states):
        return shift, spread
    for place in range(share[0].numel()):
        way, outputs, state = online.run(one.before, one.x)
        unit = _column(share, place)
        way.tape.back(outputs, unit, unit)
        for x, lasting in zip(leaves(state), later.states, strict=True):
            slope = innovation(x)
            if slope is None or lasting is None:
                continue
            reach = slope[0] * x.variance
            shift += unit * _each_series(reach * lasting[0], share)
            spread += unit * _each_series(reach.square() * lasting[1], share)
    return shift * share, spread * share.square()


def _each_series(values: Tensor, like: Tensor) -> Tensor:
    """Sums of a state (..., B, H) over all but its series."""
    if values.ndim < 2 or values.shape[-2] != len(like):
        raise ValueError(
            "States hold the series along the last but one axis, as those of torch's recurrent "
            f"layers do; got a state of the shape {tuple(values.shape)} for {len(like)} series."
        )
    sums = values.sum(-1).reshape(-1, len(like)).sum(0)
    return sums.reshape(-1, *[1] * (like.ndim - 1))


def _column(like: Tensor, place: int) -> Tensor:
    """One for one output of each series, zero for the others."""
    unit = like.new_zeros(len(like), like[0].numel())
    unit[:, place] = 1.0
    return unit.reshape(like.shape)


def _back(
    online: Online, one: Seen, on_states: list[Innovation | None], on_output: Innovation
) -> list[Innovation | None]:
    """What goes back through a step from after it, to the Gaussians of its inputs and states."""
    way, outputs, state = online.run(one.before, one.x)
    for x, found in zip(leaves(state), on_states, strict=True):
        if found is not None and x.node is not None:
            x.node.learn(*found)
    way.tape.back(outputs, *on_output)
    return [innovation(x) for x in leaves(way.inputs)]


def _before(
    one: Seen, by_own: list[Innovation | None], by_later: list[Innovation | None]
) -> _Later:
    """Innovations of the states before a step, and of the target that it took as an input."""
    both = [_plus(a, b) for a, b in zip(by_own, by_later, strict=True)]
    if not isinstance(one.x, GaussianTensor):
        return _Later(both)
    on_x, states = both[0], both[1:]
    if one.asked is None or on_x is None or one.before.target is None:
        return _Later(states)
    return _Later(states, _taken(on_x, one.asked, one.before.target.centre))


def _taken(on_x: Innovation, asked: Tensor, like: Tensor) -> Innovation:
    """The innovations of those inputs that stood for the last target, in its shape."""
    rows = asked.flatten(1).any(1)
    found = []
    for part in on_x:
        full = like.new_zeros(len(like), like[0].numel())
        full[rows] = part[asked].reshape(-1, full.shape[1])
        found.append(full.reshape(like.shape))
    return found[0], found[1]


def _plus(a: Innovation | None, b: Innovation | None) -> Innovation | None:
    if a is None or b is None:
        return a or b
    return a[0] + b[0], a[1] + b[1]
