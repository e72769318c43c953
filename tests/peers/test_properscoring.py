"""Scores of predictions as properscoring has them."""

import pytest
import torch
from exact import randn

from bayesrule.predicting import metrics
from peers.cases import agree

properscoring = pytest.importorskip("properscoring")
SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
def test_crps_of_gaussians_agrees(seed: int) -> None:
    mean, std, y = randn(50, seed=seed), randn(50, seed=seed + 10).exp(), randn(50, seed=seed + 20)
    want = properscoring.crps_gaussian(y.numpy(), mean.numpy(), std.numpy()).mean()
    agree(metrics.crps_gaussian(mean, std, y), torch.tensor(want))


@SEEDS
def test_crps_of_draws_agrees(seed: int) -> None:
    draws, y = randn(11, 50, seed=seed), randn(50, seed=seed + 10)
    want = properscoring.crps_ensemble(y.numpy(), draws.numpy(), axis=0).mean()
    agree(metrics.crps_samples(draws, y, fair=False), torch.tensor(want))


@SEEDS
def test_brier_scores_agree(seed: int) -> None:
    """Theirs is of one of two classes, so that the sum over both is twice as large."""
    probs, y = randn(50, 2, seed=seed).softmax(-1), randn(50, 2, seed=seed + 10).argmax(-1)
    want = properscoring.brier_score(y.numpy(), probs[:, 1].numpy()).mean()
    agree(metrics.brier(probs, y), torch.tensor(2.0 * want))
