"""The first hour of someone new: what they try works at once."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
from calling import call
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br

ROOT = Path(__file__).resolve().parents[1]


# A csv file with all that real ones have


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    """Ids, dates, missing cells, a category, and one class in ten."""
    generator = torch.Generator().manual_seed(0)
    file = tmp_path / "customers.csv"
    with file.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["customer", "since", "age", "plan", "left"])
        for k in range(120):
            age = 20 + int(torch.randint(50, (1,), generator=generator))
            row = [f"C{k:04d}", f"2024-{k % 12 + 1:02d}-11", age, "abc"[k % 3]]
            table.writerow([*row[:2], "" if k % 17 == 0 else age, row[3], ["no", "yes"][age > 64]])
    return file


def test_a_csv_file_goes_from_a_comparison_to_predictions(customers: Path, tmp_path: Path) -> None:
    told = ["--target", "left", "--drop", "customer,since", "--missing", "impute"]
    fast = ["--methods", "map,newton", "--epochs", "3", "--splits", "2", "--jobs", "1"]
    said = call("compare", customers, *told, *fast, "--no-baselines", "--out", tmp_path / "found")
    assert said.code == 0, said.err
    assert any(line.startswith(("Take ", "None ")) for line in said.out.splitlines()), said.out
    assert (tmp_path / "found" / "report.html").is_file()
    run = tmp_path / "run"
    said = call("fit", customers, *told, "--method", "map", "--epochs", "3", "--out", run)
    assert said.code == 0, said.err
    said = call("predict", run, customers, "--id", "customer")
    assert said.code == 0, said.err
    assert [row["customer"] for row in csv.DictReader(said.out.splitlines())][:2] == [
        "C0000",
        "C0001",
    ]


# A net of one's own


class Residual(nn.Module):
    """Batch norm, dropout and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.drop = nn.Conv2d(8, 8, 3, padding=1), nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(out + self.drop(self.second(out))).mean((2, 3)))


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 3, 6, 6, generator=generator), torch.arange(32) % 3


@pytest.mark.parametrize("name", ["map", "vogn", "ivon", "mean_field", "laplace", "noisy_kfac"])
def test_a_residual_net_learns_and_doubts(name: str) -> None:
    learner = getattr(br, name)(Residual(), br.CategoricalLikelihood(), num_data=32)
    p = br.fit(learner, images(), epochs=1, progress=False).predict(images()[0])
    assert p.entropy.shape == (32,)
    assert bool((p.entropy > 0.0).all())
    assert bool((p.mutual_information <= p.entropy + 1e-6).all())


@pytest.mark.parametrize("name", ["ivon", "mean_field", "noisy_kfac", "laplace", "vogn"])
def test_a_frozen_base_is_left_as_it_is(name: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    before = net[0].weight.clone()
    learner = getattr(br, name)(net, br.CategoricalLikelihood(), num_data=20)
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    run = br.fit(learner, (x, torch.arange(20) % 2), epochs=2, progress=False)
    assert set(run.state.posterior.mean) == {"2.weight", "2.bias"}
    assert torch.equal(net[0].weight, before)
    assert run.predict(x).probs.shape == (20, 2)


def test_a_loader_is_trained_on() -> None:
    loader = DataLoader(TensorDataset(*images()), batch_size=8, shuffle=True)
    learner = br.map(Residual(), br.CategoricalLikelihood(), num_data=32)
    assert br.fit(learner, loader, epochs=1, progress=False).state.step == 4


def test_a_belief_is_shown_in_one_line() -> None:
    learner = br.vogn(Residual(), br.CategoricalLikelihood(), num_data=32)
    assert len(repr(learner.init().posterior)) < 120


@pytest.mark.parametrize("name", ["ivon", "vogn", "noisy_kfac", "noisy_ekfac"])
def test_all_of_training_under_autocast_keeps_the_belief_in_full_precision(name: str) -> None:
    learner = getattr(br, name)(Residual(), br.CategoricalLikelihood(), num_data=32)
    with torch.autocast("cpu", torch.bfloat16):
        state, info = learner.step(learner.init(), images())
    assert {value.dtype for value in state.posterior.mean.values()} == {torch.float32}
    assert torch.isfinite(torch.as_tensor(info.loss))


def test_a_trained_net_is_calibrated_in_fewer_than_ten_lines() -> None:
    page = (ROOT / "docs" / "start" / "trained-net.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    after = block.split("optimizer.step()")[1].strip().splitlines()
    assert len([line for line in after if line.strip()]) < 10
    assert any("br.laplace" in line for line in after)
    assert any("br.predict" in line for line in after)
