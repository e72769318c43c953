"""Scores of predictions on a test set, by the names that tables and reports use."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.predicting import metrics
from bayesrule.predicting.prediction import Prediction

ECE_BINS = 15


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
    probs, labels = prediction.probs, y.reshape(-1).long()
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
    target = y.reshape(prediction.mean.shape)
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
