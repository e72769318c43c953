"""A residual net of one's own: every method trains it, and scores tell strange images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import bench, only_line
from torch import Tensor

from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.predicting.prediction import Prediction
from benchmarks.defaults import resnet
from benchmarks.defaults.resnet import METHODS, Pictures, Plan
from benchmarks.trials import loaded


def _small() -> Pictures:
    """Images whose brightness is their class, and strange ones that are brighter still."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = 0.1 * torch.randn(60, 1, 6, 6, generator=generator) + y[:, None, None, None]
    return Pictures(x[:40], y[:40], x[40:], y[40:], x[40:] + 5.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded.cache_clear()
    monkeypatch.setattr(resnet, "pictures", _small)


@pytest.mark.usefixtures("small")
def test_every_method_trains_a_net_with_batch_norm_and_dropout(tmp_path: Path) -> None:
    out = tmp_path / "resnet.json"
    said = bench("resnet", "--sizes", "20", "--epochs", "1", "--batch-size", "10", "--out", out)
    assert said.code == 0, said.err
    rows = json.loads(out.read_text())["results"]
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert "failed" not in row, row
        assert 0.0 < row["nll"] < 10.0, row
        assert 0.0 <= row["auroc_entropy"] <= 1.0
        uncertain = row["method"] not in ("plain adam", "map")
        assert ("auroc_information" in row) is uncertain


def test_strange_images_that_nobody_is_sure_of_are_told_apart() -> None:
    images, plan = _small(), Plan(test=20)

    def predict(x: Tensor) -> Prediction:
        brightness = x.mean(dim=(1, 2, 3))
        logits = -10.0 * (brightness[:, None] - torch.arange(3.0)).square()
        logits[brightness > 4.0] = 0.0
        return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])

    found = resnet.scores(predict, images, plan)
    assert found["accuracy"] == 1.0
    assert found["auroc_entropy"] == 1.0
    assert "auroc_information" not in found


@pytest.mark.usefixtures("real_data")
def test_strange_images_have_the_scale_of_the_others() -> None:
    images = resnet.pictures()
    assert len(images.x) == 60_000
    assert float(images.x.mean()) == pytest.approx(0.0, abs=1e-3)
    # Both are black where nothing is.
    assert float(images.strange.min()) == pytest.approx(float(images.x_test.min()))
    assert len(images.y_test) == len(images.x_test) == len(images.strange) == 10_000


def test_an_unknown_method_is_answered_in_one_line() -> None:
    assert "'laplace-kron'" in only_line(bench("resnet", "--methods", "laplace-kron"))
