"""Recurrent states between steps, and targets that are filled in for missing inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments import GaussianTensor, Innovation
from bayesrule.predicting.prediction import Prediction


def leaves(state: Any) -> list[GaussianTensor]:
    """The Gaussians of a state, which may be nested in tuples and lists."""
    if isinstance(state, tuple | list):
        return [leaf for part in state for leaf in leaves(part)]
    return [state] if isinstance(state, GaussianTensor) else []


def mapped(state: Any, function: Callable[[GaussianTensor], GaussianTensor]) -> Any:
    """A state with every Gaussian replaced."""
    if isinstance(state, tuple | list):
        return type(state)(mapped(part, function) for part in state)
    return function(state) if isinstance(state, GaussianTensor) else state


def innovation(x: GaussianTensor) -> Innovation | None:
    """The innovation (δ, η) of a quantity after a pass back, if it has one."""
    if x.node is None or x.node.delta is None or x.node.eta is None:
        return None
    return x.node.delta, x.node.eta


def variance_share(variance: Tensor, eta: Tensor) -> Tensor:
    """The share `1 + s η` of a variance that is left after an innovation; it stays positive."""
    return (1.0 + variance * eta).clamp_min(1e-6)


def moved(x: GaussianTensor, by: Innovation | None) -> GaussianTensor:
    """`N(m + s δ, s + s² η)`, detached from the recorded pass."""
    if by is None:
        return detached(x)
    delta, eta = by
    share = variance_share(x.variance, eta)
    return GaussianTensor(x.centre + x.variance * delta, x.variance * share)


def posterior(x: GaussianTensor) -> GaussianTensor:
    """A quantity moved by its innovation from the last pass back."""
    return moved(x, innovation(x))


def detached(x: GaussianTensor) -> GaussianTensor:
    """A quantity as it is, detached from the recorded pass."""
    return GaussianTensor(x.centre, x.variance)


def target_belief(prediction: Prediction, y: Tensor | None = None) -> GaussianTensor | None:
    """The target itself where it was observed, else its prediction; None if it is not real."""
    if not prediction.components.gaussian:
        return None
    mean, variance = prediction.mean, prediction.variance
    if y is None:
        return GaussianTensor(mean, variance)
    y = y.reshape(mean.shape)
    missing = y.isnan()
    return GaussianTensor(torch.where(missing, mean, y), torch.where(missing, variance, 0.0))


def fill(x: Tensor, missing: Tensor, target: GaussianTensor | None) -> Tensor:
    """Inputs (B, *) with the last targets, in order, where they are missing."""
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
