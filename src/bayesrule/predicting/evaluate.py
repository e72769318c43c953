"""Scores of predictions on a test set, by the names that tables and reports use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.likelihoods._weighted import split, times
from bayesrule.predicting import metrics
from bayesrule.predicting.outputs import Outputs
from bayesrule.predicting.predict import How, States, as_states, as_tensor, believed_outputs
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.inputs import pairs

ECE_BINS = 15
_CHUNK = 4096


def scores_of(
    learner: Learner, state: States, data: Any, how: How | None = None, *, seed: int = 0
) -> dict[str, float]:
    """All scores of predictions on data: a pair (x, y), a Dataset or a loader of batches.

    Several states are an ensemble, whose prediction is the equal mixture of theirs.
    """
    members = as_states(state)
    outputs: list[list[Outputs]] = [[] for _ in members]
    targets = []
    for x, y in pairs(data, _CHUNK):
        for member, batches in zip(members, outputs, strict=True):
            batches.append(believed_outputs(learner, member, x, how, seed=seed))
        targets.append(learner.likelihood.weighed(as_tensor(y, members[0].posterior.device)))
    if not targets:
        raise ValueError("There are no examples to score.")
    predictions = [
        Outputs.joined(batches).prediction(learner.likelihood, member.likelihood)
        for member, batches in zip(members, outputs, strict=True)
    ]
    return scores(Prediction.pooled(predictions), torch.cat(targets))


def log_probs(prediction: Prediction, y: Tensor) -> Tensor:
    """`log p(y_i)` of the examples with a weight above zero; for a sequence, at any position."""
    return counted(prediction.log_prob(y), y)


def counted(values: Tensor, y: Tensor) -> Tensor:
    """The values (n,) of the examples with a weight above zero."""
    weight = split(y)[1]
    return values if weight is None else values[weight.reshape(len(values), -1).amax(1) > 0]


def scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """All scores that fit the kind of prediction; log-likelihoods are per point, of the mixture."""
    bad = ~prediction.mean.flatten(start_dim=1).isfinite().all(dim=1)
    if bad.any():
        raise ValueError(
            f"The predictions of {int(bad.sum())} of {len(bad)} rows are not finite, so there is "
            "nothing to score: training has diverged. A smaller learning_rate or a larger "
            "prior_precision usually helps."
        )
    measure = _class_scores if prediction.classification else _real_scores
    return {name: float(value) for name, value in measure(prediction, y).items()}


def _class_scores(prediction: Prediction, y: Tensor) -> dict[str, Tensor]:
    targets, weight = split(y)
    counts = times(torch.ones(targets.shape, device=targets.device), weight).reshape(-1) > 0
    probs = prediction.probs.flatten(0, -2)[counts]
    labels = targets.reshape(-1).long()[counts]
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "balanced_accuracy": metrics.balanced_accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels, bins=ECE_BINS),
        "auroc": metrics.class_auroc(probs, labels),
        "average_precision": metrics.average_precision(probs, labels),
    }


def _real_scores(prediction: Prediction, y: Tensor) -> dict[str, Tensor]:
    lower, upper = prediction.interval(0.9)
    target = split(y)[0].reshape(prediction.mean.shape)
    return {
        "rmse": metrics.rmse(prediction.mean, target),
        "mae": metrics.mae(prediction.mean, target),
        "log_likelihood": prediction.log_prob(target).mean(),
        "crps": _crps(prediction, target),
        "coverage_90": metrics.coverage(lower, upper, target),
        "sharpness_90": metrics.sharpness(lower, upper),
    }


def _crps(prediction: Prediction, y: Tensor) -> Tensor:
    if not prediction.components.gaussian:
        return metrics.crps_samples(prediction.sample(200).flatten(start_dim=1), y.reshape(-1))
    means, variances = prediction.components.mean, prediction.components.variance
    moments = means.flatten(start_dim=1), variances.sqrt().flatten(start_dim=1)
    return metrics.crps_mixture_of_gaussians(*moments, y.reshape(-1))


def coverage_levels() -> Tensor:
    """The nominal levels of a coverage curve."""
    return torch.linspace(0.05, 0.95, 19)
