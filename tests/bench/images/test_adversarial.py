"""Attacks on a small net: trained now or read from a file, with the same result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import bench, only_line
from torch import Generator, nn

from benchmarks.data.images import Images
from benchmarks.images import adversarial, tagi


def bars() -> Images:
    """Images 1 × 4 × 10 with a bright column that tells the class."""
    generator = Generator().manual_seed(0)
    y = torch.randint(0, 10, (400,), generator=generator)
    x = 0.1 * torch.randn(400, 1, 4, 10, generator=generator)
    x[torch.arange(400), 0, :, y] += 1.0
    return Images("bars", x[:300], y[:300], x[300:], y[300:], tuple("0123456789"))


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 10))

    small = tagi.Task("Bars", bars, net, 25, 3, 0.5, 0.1, 0.1, False, 5.0)
    monkeypatch.setitem(tagi.TASKS, "bars", small)


def test_a_net_that_is_read_is_attacked_as_the_one_that_was_trained(tmp_path: Path) -> None:
    kept, again, net = (tmp_path / name for name in ("a.json", "b.json", "net.safetensors"))
    words = ["adversarial", "--task", "bars", "--num", "20", "--short"]
    first = bench(*words, "--save", net, "--out", kept)
    second = bench(*words, "--state", net, "--out", again)
    results = [json.loads(file.read_text()) for file in (kept, again)]
    for said, result in zip((first, second), results, strict=True):
        success = result["results"]["as it is"]["success"]
        assert said.code == int(success < adversarial.BAR)
        assert f"{success:.1%}" in said.out
        del result["results"]["as it is"]["seconds"], result["command"]
    assert results[0] == results[1]


def test_targets_are_other_classes() -> None:
    y = torch.arange(1000) % 10
    target = adversarial.other_classes(y)
    assert (target != y).all()
    assert target.unique().tolist() == list(range(10))


def test_a_device_that_there_is_not_is_refused_before_training() -> None:
    said = bench("adversarial", "--task", "bars", "--device", "abacus")
    assert "The device 'abacus' cannot be used here" in only_line(said)
