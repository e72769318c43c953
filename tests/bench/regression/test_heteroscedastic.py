"""Noise that depends on the input: the figures and the picture, after a few epochs."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from calling import bench

from benchmarks.regression import heteroscedastic as benchmark


def test_the_benchmark_runs_and_draws_what_it_finds() -> None:
    predictions = [benchmark.train(seed, num=500, epochs=2) for seed in (7, 8)]
    found = benchmark.figures(7, predictions[0])
    assert 0.1 < found["noise_error"] < 2.0  # far from learned, far from nonsense
    assert benchmark.distance(benchmark.noise(benchmark.GRID), benchmark.noise(benchmark.GRID)) == 0
    root = ElementTree.fromstring(benchmark.picture(predictions))
    lines = [line.get("class") for line in root.iter("{http://www.w3.org/2000/svg}path")]
    assert (lines.count("found"), lines.count("truth"), lines.count("mean")) == (2, 1, 1)


def test_the_command_says_whether_the_bar_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(seed: int) -> object:
        return train(seed, num=200, epochs=1)

    train = benchmark.train
    monkeypatch.setattr(benchmark, "train", quick)
    file, picture = tmp_path / "a" / "noise.json", tmp_path / "b" / "noise.svg"
    said = bench("heteroscedastic", "--seeds", "2", "--out", file, "--picture", picture)
    assert said.code == 1, "an epoch is not enough"
    assert "misses" in said.out
    assert [one["seed"] for one in json.loads(file.read_text())["results"]] == [0, 1]
    assert picture.read_text().startswith("<svg")
