"""TAGI on images: training, scoring, and what the command line makes of it."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from bayesrule.execution import Compiled
from benchmarks.__main__ import main
from benchmarks.data.images import Images
from benchmarks.images import tagi


def stripes() -> Images:
    """Small images with a bright column that tells the class."""
    generator = Generator().manual_seed(0)
    y = torch.randint(0, 3, (400,), generator=generator)
    x = 0.1 * torch.randn(400, 1, 6, 6, generator=generator)
    x[torch.arange(400), 0, :, 2 * y] += 1.0
    return Images("stripes", x[:300], y[:300], x[300:], y[300:], ("a", "b", "c"))


def net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    )


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    small = tagi.Task("Stripes", stripes, net, 25, 3, 0.5, 0.1, 0.1, False, 5.0)
    monkeypatch.setitem(tagi.TASKS, "stripes", small)


def test_the_error_falls_and_each_epoch_is_noted() -> None:
    shown: list[dict[str, float]] = []
    found, learner, state = tagi.run("stripes", show=shown.append)
    assert found["history"] == shown
    assert [row["epoch"] for row in shown] == [1, 2, 3]
    assert shown[-1]["error"] < 5.0
    assert shown[-1]["nll"] < shown[0]["nll"]
    data = stripes().standardised()
    assert tagi.scores(learner, state, data.x_test, data.y_test)["error"] == shown[-1]["error"]


def test_compiled_steps_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagi, "Compiled", functools.partial(Compiled, backend="eager"))
    plain, _, _ = tagi.run("stripes", epochs=1)
    compiled, _, _ = tagi.run("stripes", epochs=1, fused=True)
    assert compiled["history"][0]["nll"] == pytest.approx(plain["history"][0]["nll"], rel=1e-3)


def test_held_out_images_are_not_learned_from() -> None:
    found, learner, _ = tagi.run("stripes", epochs=1, held_out=60, every=2)
    assert learner.num_data == 240
    assert found["test"] == "held-out training images"
    _, learner, _ = tagi.run("stripes", epochs=1, num=50)
    assert learner.num_data == 50


def test_images_are_shifted_and_mirrored() -> None:
    x = torch.zeros(200, 2, 9, 9)
    x[:, 0, 4, 4], x[:, 1, 4, 0] = 1.0, 2.0
    moved = tagi.shifted_and_mirrored(x, Generator().manual_seed(0), reach=2)
    rows, columns = (moved[:, 0] == 1.0).nonzero()[:, 1:].unbind(1)
    assert len(rows) == 200, "the middle stays within the image"
    assert {*rows.tolist()} == {*columns.tolist()} == {2, 3, 4, 5, 6}
    edge = (moved[:, 1] == 2.0).nonzero()[:, 2]
    assert {*edge.tolist()} == {0, 1, 2, 6, 7, 8}, "both sides, as half are mirrored"


def test_augmented_training_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        tagi.TASKS, "stripes", replace(tagi.TASKS["stripes"], augmented=True, epochs=1)
    )
    found, _, _ = tagi.run("stripes")
    assert torch.tensor(found["history"][0]["loss"]).isfinite()


def test_the_command_keeps_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tagi.TASKS.pop("stripes")
    monkeypatch.setitem(tagi.TASKS, "mnist-fnn", task)
    out = tmp_path / "result.json"
    assert main(["images", "mnist-fnn", "--epochs", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "error %" in printed.out
    assert "epoch 2" in printed.err
    kept = json.loads(out.read_text())
    assert len(kept["history"]) == 2
    assert kept["command"].startswith("python -m benchmarks images mnist-fnn")
    assert {"versions", "machine"} <= set(kept)
