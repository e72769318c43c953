"""The page on noisy natural gradients: its snippets run, its names, links and figures are true."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br
from benchmarks.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "natural-gradient.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_snippets_run_one_after_another() -> None:
    names: dict[str, Any] = {}
    sampler = importlib.util.find_spec("nutpie") is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in BLOCKS:
            if sampler or "br.hmc" not in block:
                short = "draws=4, warmup=10, chains=2, compile=False"
                code = block.replace("draws=500, warmup=500", short)
                exec(compile(code, "natural-gradient.md", "exec"), names)
    assert isinstance(names["run"].state.posterior, br.posteriors.Gaussian)
    assert isinstance(names["state"].posterior, br.posteriors.Rotated)
    assert len(names["left"]) == len(names["ensemble"]) == 5
    assert (names["between"] > 0).all()
    assert names["found"].rmse.shape == (3,)
    if sampler:
        assert (names["truth"] > 0).all()


def test_defaults_are_those_of_the_table() -> None:
    options = inspect.signature(br.noisy_kfac).parameters
    rows = re.findall(r"^\| `(\w+)` \| ([\d.e-]+)[ (|]", PAGE, flags=re.MULTILINE)
    shown = {name: float(value) for name, value in rows}
    assert set(shown) == {
        *("learning_rate", "rate", "stats_every", "inverse_every"),
        *("draws", "kl_clip", "damping", "momentum"),
    }
    defaults = {name: options[name].default for name in options}
    assert br.schedules.falling(shown.pop("learning_rate")) == defaults["learning_rate"]
    assert br.schedules.averaging(shown.pop("rate"), 0.002) == defaults["rate"]
    assert shown == {name: defaults[name] for name in shown}
    assert defaults["initial_curvature"] is None
    # Two weights and one datum.
    learner = br.noisy_kfac(torch.nn.Linear(1, 1), br.GaussianLikelihood(), num_data=1)
    assert learner.temperature == 0.5


def test_the_figures_are_those_of_the_picture() -> None:
    drawn = (ROOT / "docs" / "pictures" / "natural_gradient.svg").read_text()
    said = PAGE.split("```python")[0]
    notes = re.findall(r"ELBO (−\d+) nats, r = (\d\.\d\d)", drawn)
    assert len(notes) == 3
    assert re.findall(r"−\d+", said) == [bound for bound, _ in notes]
    assert re.findall(r"0\.\d\d", said) == [share for _, share in notes]


def test_links_and_files_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []
    reading = PAGE.split("## Reading the code")[1].split("## The papers' tables")[0]
    cells = [row.split("|")[1] for row in reading.splitlines() if row.startswith("| `")]
    for cell in cells:
        folder = Path()
        for name in re.findall(r"`([\w/]+\.py)`", cell):
            # A name without a folder stands in that of the one before.
            folder = Path(name).parent if "/" in name else folder
            assert (ROOT / "src" / "bayesrule" / folder / Path(name).name).is_file(), name
    assert len(cells) == 10


@pytest.mark.parametrize("command", sorted(set(re.findall(r"python -m benchmarks (\w+)", PAGE))))
def test_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    wanted = re.findall(rf"python -m benchmarks {command} ([^`;]*)", PAGE)
    told = " ".join(capsys.readouterr().out.split())
    for option in re.findall(r"--[\w-]+", " ".join(wanted)):
        assert option in told


@pytest.mark.parametrize("marker", ["hmc", "active"])
def test_there_is_a_place_for_each_table(marker: str) -> None:
    assert PAGE.count(f"<!-- {marker}:begin -->\n") == PAGE.count(f"<!-- {marker}:end -->") == 1
