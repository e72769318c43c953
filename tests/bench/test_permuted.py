"""Tasks one after another: the order of pixels, what is carried on, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from bayesrule.posteriors.bernoulli import BernoulliPrior
from benchmarks.beyond import permuted
from benchmarks.beyond.permuted import METHODS, Setting
from benchmarks.data.images import Images
from benchmarks.trials import loaded
from tests.calling import bench

SMALL = Setting(tasks=3, epochs=3, width=40, batch_size=25, rate=0.03)
WORDS = ["permuted", "--tasks", "2", "--epochs", "1", "--width", "10", "--seeds", "0"]


def shapes() -> Images:
    """Ten patterns of pixels with noise, in place of digits."""
    generator = Generator().manual_seed(0)
    patterns = torch.rand(10, 1, 28, 28, generator=generator) < 0.2

    def part(num: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 10, (num,), generator=generator)
        return patterns[y] + 0.3 * torch.randn(num, 1, 28, 28, generator=generator), y

    return Images("shapes", *part(600), *part(200), tuple("0123456789"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permuted, "mnist", shapes)
    loaded.cache_clear()


def test_all_tasks_so_far_are_scored_after_each() -> None:
    found = permuted.run(SMALL, methods=METHODS[:1], seeds=[0])
    (one,) = found["results"]
    assert [len(row) for row in one["accuracy"]] == [1, 2, 3]
    assert one["accuracy"][0][0] > 0.9
    # The posterior is the next prior: what came first is still known.
    assert one["accuracy"][2][0] > 0.6
    assert permuted.means(found) == {"bayesbinn": pytest.approx(sum(one["accuracy"][2]) / 3)}


def test_the_pixels_have_another_order_in_each_task() -> None:
    orders = permuted._orders(3, torch.device("cpu"))
    assert torch.equal(orders[0], torch.arange(784))
    assert not torch.equal(orders[1], orders[2])
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(784))


def test_one_method_takes_its_posterior_as_the_prior() -> None:
    learners = [permuted._learner(SMALL, name, 600, None, 0) for name in METHODS]
    state = learners[0].init(0)
    later = [permuted._learner(SMALL, name, 600, state, 0).prior for name in METHODS]
    strengths = [
        (isinstance(p.logits, dict), p.strength) for p in later if isinstance(p, BernoulliPrior)
    ]
    assert strengths == [(True, 1.0), (False, 1.0), (False, 0.0)]


def test_the_command_keeps_trials_and_says_whether_the_prior_helps(tmp_path: Path) -> None:
    file = tmp_path / "permuted.json"
    said = bench(*WORDS, "--num", "100", "--out", file)
    kept = json.loads(file.read_text())
    assert [one["method"] for one in kept["results"]] == list(METHODS)
    assert said.code == int(not permuted.better(kept))
    means = permuted.means(kept)
    for name in METHODS:
        assert f"{100.0 * means[name]:.2f}" in said.out
    before = file.read_bytes()
    assert bench(*WORDS, "--num", "100", "--out", file).out == said.out
    assert file.read_bytes() == before


@pytest.mark.parametrize(("last", "good"), [(0.9, True), (0.5, False)])
def test_the_prior_has_to_keep_more_than_the_others(last: float, good: bool) -> None:
    rows = zip(METHODS, (last, 0.7, 0.6), strict=True)
    assert permuted.better({"results": [{"method": m, "accuracy": [[v]]} for m, v in rows]}) is good
