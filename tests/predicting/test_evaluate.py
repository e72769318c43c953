"""Scores by name equal the metrics they stand for, on predictions made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from bayesrule.likelihoods import ClassTargets, NormalTargets, PoissonTargets
from bayesrule.predicting import metrics
from bayesrule.predicting.evaluate import ECE_BINS, coverage_levels, scores
from bayesrule.predicting.prediction import Prediction


def real(means: Tensor, stds: Tensor) -> Prediction:
    """A mixture of Gaussians, one row of (K, n, 1) for each weight draw."""
    mean = means.mean(0)
    return Prediction(
        components=NormalTargets(means, stds),
        mean=mean,
        epistemic=means.var(0, unbiased=False),
        aleatoric=stds.square().mean(0),
        conditional_means=means,
    )


def classes(probs: Tensor) -> Prediction:
    """Class probabilities (K, n, C) for each weight draw."""
    mean = probs.mean(0)
    return Prediction(
        components=ClassTargets(probs.log()),
        mean=mean,
        epistemic=probs.var(0, unbiased=False),
        aleatoric=(probs * (1 - probs)).mean(0),
        conditional_means=probs,
    )


def test_one_gaussian_by_hand() -> None:
    prediction = real(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[1.0], [2.0]]]))
    found = scores(prediction, torch.tensor([[1.0], [5.0]]))
    assert list(found) == ["rmse", "mae", "log_likelihood", "crps", "coverage_90", "sharpness_90"]
    assert found["rmse"] == pytest.approx(math.sqrt((1 + 16) / 2))
    assert found["mae"] == pytest.approx(2.5)
    log_probs = [-0.5 - 0.5 * math.log(2 * math.pi), -2 - math.log(2) - 0.5 * math.log(2 * math.pi)]
    assert found["log_likelihood"] == pytest.approx(sum(log_probs) / 2, abs=1e-5)
    # 1.645 standard deviations reach the first target and not the second.
    assert found["coverage_90"] == pytest.approx(0.5)
    assert found["sharpness_90"] == pytest.approx(2 * 1.644854 * 1.5, rel=1e-4)


def test_a_mixture_equals_the_metrics() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 20, 1, generator=generator)
    stds = 0.5 + torch.rand(3, 20, 1, generator=generator)
    y = torch.randn(20, 1, generator=generator)
    prediction = real(means, stds)
    found = scores(prediction, y)
    lower, upper = prediction.interval(0.9)
    mixture = (means.squeeze(-1), stds.squeeze(-1), y.squeeze(-1))
    wanted = {
        "rmse": metrics.rmse(prediction.mean, y),
        "mae": metrics.mae(prediction.mean, y),
        "log_likelihood": Normal(means, stds).log_prob(y).logsumexp(0).mean() - math.log(3),
        "crps": metrics.crps_mixture_of_gaussians(*mixture),
        "coverage_90": metrics.coverage(lower, upper, y),
        "sharpness_90": metrics.sharpness(lower, upper),
    }
    assert found == pytest.approx({name: float(v) for name, v in wanted.items()}, rel=1e-5)


def test_targets_may_be_flat() -> None:
    prediction = real(torch.zeros(1, 2, 1), torch.ones(1, 2, 1))
    flat, column = torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [2.0]])
    assert scores(prediction, flat) == scores(prediction, column)


def test_classes_equal_the_metrics() -> None:
    generator = torch.Generator().manual_seed(1)
    probs = torch.randn(4, 30, 3, generator=generator).softmax(-1)
    y = torch.randint(0, 3, (30,), generator=generator)
    found = scores(classes(probs), y)
    mean = probs.mean(0)
    wanted = {
        "accuracy": (mean.argmax(-1) == y).float().mean(),
        "balanced_accuracy": metrics.balanced_accuracy(mean, y),
        "nll": -mean[torch.arange(30), y].log().mean(),
        "brier": metrics.brier(mean, y),
        "ece": metrics.ece(mean, y, bins=ECE_BINS),
        "auroc": metrics.class_auroc(mean, y),
        "average_precision": metrics.average_precision(mean, y),
    }
    assert found == pytest.approx({name: float(v) for name, v in wanted.items()}, rel=1e-5)


def test_counts_are_scored_by_samples() -> None:
    rates = torch.full((1, 6, 1), 4.0)
    prediction = Prediction(
        components=PoissonTargets(rates),
        mean=rates[0],
        epistemic=torch.zeros(6, 1),
        aleatoric=rates[0],
        conditional_means=rates,
    )
    y = torch.tensor([2.0, 3.0, 4.0, 5.0, 6.0, 4.0]).unsqueeze(1)
    found = scores(prediction, y)
    samples = prediction.sample(200).flatten(start_dim=1)
    assert found["crps"] == pytest.approx(float(metrics.crps_samples(samples, y.reshape(-1))))
    assert found["coverage_90"] == 1.0


def test_what_is_not_finite_is_not_scored() -> None:
    means = torch.tensor([[[0.0], [math.nan], [math.inf]]])
    prediction = real(means, torch.ones(1, 3, 1))
    with pytest.raises(ValueError, match=r"2 of 3 rows are not finite.*smaller learning_rate"):
        scores(prediction, torch.zeros(3, 1))


def test_levels_of_a_coverage_curve() -> None:
    levels = coverage_levels()
    torch.testing.assert_close(levels, torch.arange(1, 20) / 20)
