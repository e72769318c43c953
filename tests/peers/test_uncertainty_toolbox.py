"""Errors, scores and coverage of Gaussian predictions as Uncertainty Toolbox has them."""

import numpy as np
import pytest
import torch
from exact import randn
from torch import Tensor

from bayesrule.predicting import metrics
from peers.cases import agree

toolbox = pytest.importorskip("uncertainty_toolbox")
SEEDS = pytest.mark.parametrize("seed", range(5))
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def _predictions(seed: int) -> tuple[tuple[Tensor, Tensor, Tensor], Arrays]:
    """Means, standard deviations and targets, as tensors and as arrays."""
    mean, std, y = randn(50, seed=seed), randn(50, seed=seed + 10).exp(), randn(50, seed=seed + 20)
    return (mean, std, y), (mean.numpy(), std.numpy(), y.numpy())


@SEEDS
def test_errors_agree(seed: int) -> None:
    (mean, _, y), (means, _, targets) = _predictions(seed)
    want = toolbox.prediction_error_metrics(means, targets)
    agree(metrics.rmse(mean, y), torch.tensor(float(want["rmse"])))
    agree(metrics.mae(mean, y), torch.tensor(float(want["mae"])))


@SEEDS
def test_scores_agree(seed: int) -> None:
    (mean, std, y), arrays = _predictions(seed)
    found = metrics.crps_gaussian(mean, std, y)
    agree(found, torch.tensor(float(toolbox.crps_gaussian(*arrays))))
    found = metrics.gaussian_log_likelihood(mean, std.square(), y)
    agree(found, torch.tensor(-float(toolbox.nll_gaussian(*arrays))))


@SEEDS
def test_coverages_agree(seed: int) -> None:
    """Shares of the targets in central intervals of all levels, and in one interval by its ends."""
    (mean, std, y), arrays = _predictions(seed)
    levels, want = toolbox.get_proportion_lists_vectorized(*arrays, prop_type="interval")
    pit = torch.special.ndtr((y - mean) / std)
    agree(metrics.coverage_curve(pit, torch.tensor(levels)), torch.tensor(want))
    ends = toolbox.get_prediction_interval(arrays[0], arrays[1], 0.8)
    inside = metrics.coverage(torch.tensor(ends.lower), torch.tensor(ends.upper), y)
    agree(inside, torch.tensor(toolbox.get_proportion_in_interval(*arrays, 0.8)))
    assert 0.0 < float(inside) < 1.0
