"""Nets of binary weights on images: how they are made, and what they give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.posteriors import Bernoulli
from bayesrule.tensors.network import forked_randomness
from benchmarks.images import binary_tasks, variational
from benchmarks.images.binary_tasks import METHODS, PAPER, binary_mlp
from benchmarks.images.variational import Trial
from benchmarks.images.variational_tasks import Task
from tests.calling import bench

from .small_tasks import stripes


def _net() -> nn.Module:
    with forked_randomness(torch.device("cpu"), 0):
        first = nn.Linear(36, 64, bias=False), nn.BatchNorm1d(64, affine=False), nn.ReLU()
        last = nn.Linear(64, 3, bias=False), nn.BatchNorm1d(3, affine=False)
        return nn.Sequential(nn.Flatten(), *first, *last)


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripes and a small net under the name of the large one."""
    small = Task(
        *("Stripes, 64 binary weights", stripes, _net, 8, 1e-2, 0.0, 25, False),
        methods=tuple(METHODS),
        temperatures=(1.0,),
        own=binary_tasks.TASKS["mnist-binary"].own,
    )
    monkeypatch.setitem(binary_tasks.TASKS, "mnist-binary", small)


def test_both_methods_learn_and_predict_in_their_ways() -> None:
    given = [Trial(name) for name in METHODS]
    found = variational.run("mnist-binary", given, held_out=60)
    ways = [(one["method"], one["way"]) for one in found["results"]]
    assert ways == [("ste", "signs"), ("bayesbinn", "signs"), ("bayesbinn", "10 draws")]
    for one in found["results"]:
        assert one["history"][-1]["loss"] < one["history"][0]["loss"]
        if one["way"] != "signs" or one["method"] == "ste":
            assert one["test"]["accuracy"] > 90, one["method"]


def test_the_command_prints_a_table_and_keeps_trials(tmp_path: Path) -> None:
    words = ["images", "mnist-binary", "--held-out", "60", "--out", tmp_path / "binary.json"]
    said = bench(*words, "--rates", "0.3,1", "--epochs", "2")
    assert said.code == 0
    assert "bayesbinn, 10 draws" in said.out
    again = bench(*words, "--rates", "0.3,1", "--epochs", "2")
    assert again.err.splitlines() == ["6 results are there already"]
    assert bench(*words, "--temperatures", "1").code == 2


def test_the_net_has_the_papers_layers_and_starts_from_its_seed() -> None:
    net = binary_mlp()
    shapes = [tuple(value.shape) for value in net.parameters()]
    assert shapes == [(2048, 784), (2048, 2048), (2048, 2048), (10, 2048)]
    assert isinstance(net[-1], nn.BatchNorm1d)
    first, second, other = binary_mlp((8,)), binary_mlp((8,)), binary_mlp((8,), seed=1)
    assert torch.equal(next(first.parameters()), next(second.parameters()))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_the_paper_begins_sure_of_the_signs() -> None:
    make = METHODS["bayesbinn"].make
    net = binary_mlp((8,))
    learner = make(net, CategoricalLikelihood(), num_data=10, prior_precision=0.0, **PAPER)
    belief = learner.init().posterior
    assert isinstance(belief, Bernoulli)
    for name, weight in net.named_parameters():
        assert torch.equal(belief.logits[name], 10.0 * weight.detach().sign())
