"""Calibration errors and coverage as netcal has them.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

import numpy as np
import pytest
import torch
from exact import generator, randn
from scipy import stats
from torch import Tensor

from bayesrule.predicting import metrics
from peers.cases import agree

netcal = pytest.importorskip("netcal.metrics")
SEEDS = pytest.mark.parametrize("seed", range(5))
BINS = pytest.mark.parametrize("bins", [1, 5, 15])


def _classes(seed: int) -> tuple[Tensor, Tensor]:
    """Probabilities of four classes, bolder than the labels deserve.

    There are equally many in all bins of equal mass: where a rest goes is up to each library.
    """
    logits = 1.5 * randn(300, 4, seed=seed)
    labels = torch.multinomial((0.6 * logits).softmax(-1), 1, generator=generator(seed))
    return logits.softmax(-1), labels.squeeze(-1)


@SEEDS
@BINS
@pytest.mark.parametrize("adaptive", [False, True])
def test_expected_calibration_errors_agree(seed: int, bins: int, adaptive: bool) -> None:
    probs, y = _classes(seed)
    want = netcal.ECE(bins, equal_intervals=not adaptive).measure(probs.numpy(), y.numpy())
    agree(metrics.ece(probs, y, bins, adaptive), torch.tensor(float(want)))


@SEEDS
@BINS
def test_gaps_of_the_reliability_diagram_agree(seed: int, bins: int) -> None:
    """The largest gap of accuracy and confidence, and the mean gap of bins that are not empty."""
    probs, y = _classes(seed)
    table = metrics.reliability(probs, y, bins)
    gaps = (table.accuracy - table.confidence).abs()
    largest, average = (
        torch.tensor(float(kind(bins).measure(probs.numpy(), y.numpy())))
        for kind in (netcal.MCE, netcal.ACE)
    )
    agree(gaps[~gaps.isnan()].max(), largest)
    agree(gaps.nanmean(), average)


@SEEDS
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_and_sharpness_agree(seed: int, level: float) -> None:
    mean, std, y = randn(50, seed=seed), randn(50, seed=seed + 10).exp(), randn(50, seed=seed + 20)
    lower, upper = (torch.tensor(end) for end in stats.norm.interval(level, mean, std))
    predicted = mean.numpy(), std.numpy()
    want = netcal.PICP().measure(predicted, y.numpy(), q=level, reduction="mean")
    agree(metrics.coverage(lower, upper, y), torch.tensor(float(want.picp)))
    agree(metrics.sharpness(lower, upper), torch.tensor(float(want.mpiw)))


@SEEDS
def test_log_likelihoods_agree(seed: int) -> None:
    mean, std, y = randn(50, seed=seed), randn(50, seed=seed + 10).exp(), randn(50, seed=seed + 20)
    want = netcal.NLL().measure((mean.numpy(), std.numpy()), y.numpy(), reduction="mean")
    agree(metrics.gaussian_log_likelihood(mean, std.square(), y), torch.tensor(-np.float64(want)))
