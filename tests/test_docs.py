"""Snippets of the README and of the pages run, and figures are those of the results."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br
from bayesrule import moments
from bayesrule.families import Gamma
from bayesrule.training.models import mlp
from benchmarks.tables import figures as tables
from benchmarks.tables.natural_gradient import PAGE

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SPEED = (ROOT / "docs" / "speed.md").read_text()
IMAGES = (ROOT / "docs" / "images.md").read_text()


def _blocks(document: str = README) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)


def test_readme_snippets_run_one_after_another() -> None:
    names: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _blocks():
            exec(compile(block.replace("epochs=200", "epochs=2"), "README.md", "exec"), names)
    assert {"learner", "run", "p"} <= set(names)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(re.findall(r"^!\[", README, flags=re.MULTILINE)) == 1


def test_snippets_on_tagi_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments.tensor, "RULES", dict(moments.RULES))
    names: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        for block in _blocks((ROOT / "docs" / "tagi.md").read_text()):
            exec(compile(block, "tagi.md", "exec"), names)
    assert {"learner", "state", "p", "log1p"} <= set(names)


def test_snippets_on_exploring_run() -> None:
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _blocks((ROOT / "docs" / "explore.md").read_text()):
            exec(compile(block, "explore.md", "exec"), names)
    assert names["gain"].shape == names["expected"].shape == (64,)
    assert names["slopes"].mean.shape == (64, 1, 3)
    assert [state.step for state in names["states"]] == [1, 1]
    assert names["bandit"].rounds == 50
    truth = float(names["best"])
    for found in (names["simple"], names["robust"]):
        assert abs(found.value - truth) < 5 * found.error


def test_snippets_on_graphical_models_run() -> None:
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _blocks((ROOT / "docs" / "graphical.md").read_text()):
            exec(compile(block, "graphical.md", "exec"), names)
    assert sorted(names["model"].weights_.tolist()) == pytest.approx([0.4, 0.6], abs=0.01)
    assert int((names["bayesian"].weights_ > 0.01).sum()) == 2
    assert names["path"].shape == (300,)
    assert not names["full"].isnan().any()
    assert torch.equal(names["again"].means_, names["model"].means_)
    assert names["rates"].tolist() == pytest.approx([2.0, 20.0], rel=0.15)
    objective = names["mixed"].report_.objective
    assert all(later > sooner - 1e-9 for sooner, later in itertools.pairwise(objective))
    # One component is the Gamma and its counts, and the bound their evidence.
    single, y = names["PoissonMixture"](components=1).fit(names["y"]), names["y"].double()
    before, after = Gamma.make(1.0, 0.1), Gamma.make(1.0 + y.sum(), 0.1 + len(y))
    evidence = after.log_partition - before.log_partition - torch.lgamma(y + 1.0).sum()
    assert single.report_.objective[-1] == pytest.approx(float(evidence), rel=1e-6)
    assert (names["low"] == names["low"].round()).all()
    missing, month = names["shop"].smooth().mean[30:36], names["month"][30:36]
    assert (missing - 0.1 * month - torch.sin(month * torch.pi / 6)).abs().max() < 0.5


def test_figures_on_graphical_models_are_those_of_the_result() -> None:
    page = (ROOT / "docs" / "graphical.md").read_text()
    result = json.loads((ROOT / "benchmarks" / "results" / "graphical.json").read_text())
    rows = {(one["model"], one["size"]): one for one in result["results"]}
    mixture, topics = rows["mixture", 1_000_000], rows["topics", 25_000]
    batches = rows["topics in batches", 25_000]
    for row in (mixture, topics, batches):
        assert f"{row['ratio']:.2f}" in page
    for size in (17_420, 8710, 4355):
        assert f"{rows['states', size]['ratio']:.1f}" in page
    for row in (topics, batches):
        assert f"−{-row['objective']:.3f}" in page
        assert f"−{-row['their_objective']:.3f}" in page
    for growth in result["growth"].values():
        assert f"{growth:.1f}" in page


def test_figures_on_gaussian_models_are_those_of_the_result() -> None:
    page = (ROOT / "docs" / "graphical.md").read_text().replace("−", "-")
    text = (ROOT / "benchmarks" / "results" / "gaussian_models.json").read_text()
    rows = json.loads(text)["results"]

    def mean(model: str, data: str, figure: str) -> float:
        found = [one[figure] for one in rows if (one["model"], one["set"]) == (model, data)]
        return sum(found) / len(found)

    tumours = "breast_cancer"
    for model, data in (
        *(("GP", "yacht"), ("GP", "boston")),
        *(("GP of answers", tumours), ("LogisticRegression", tumours)),
    ):
        for figure in ("objective", "their_objective"):
            assert f"{mean(model, data, figure):.3f}" in page
    for data in ("yacht", "boston"):
        assert f"{mean('GP', data, 'ratio'):.2f}" in page
    passes = mean("GP of answers", tumours, "ratio")
    fits = [mean("GP of answers", tumours, name) for name in ("fit_seconds", "their_fit_seconds")]
    assert f"a pass takes {passes:.2f} of its time, and a fit {fits[0] / fits[1]:.2f}" in page
    series = rows[-1]
    assert series["objective"] == pytest.approx(series["their_objective"], abs=1e-7)
    assert f"{series['ratio']:.1f} times" in page
    single, half_year = series["gaps"]
    for gaps, digits in ((single, 3), (half_year, 2)):
        assert f"{gaps['error']:.{digits}f}" in page
        assert f"{gaps['error_of_lines']:.{digits}f}" in page


def test_snippets_on_variational_posteriors_run() -> None:
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _blocks((ROOT / "docs" / "variational.md").read_text()):
            exec(compile(block, "variational.md", "exec"), names)
    run, tied = names["run"], names["tied"]
    layers = [(32, 4), (3, 32)]
    means = sum(m * n + m for m, n in layers)
    assert run.state.posterior.num_parameters == 2 * means
    assert tied.posterior.num_parameters == means + sum(2 * (m + n) + m for m, n in layers)
    assert names["spectrum"].explained[0] > 0.9
    assert names["measure"].steps == 10


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_point_to_files_that_exist(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text())
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).is_file()] == []


def _noise(expectation: br.expectations.Expectation) -> tuple[float, float]:
    """The mean standard deviation of gradients in the scales and in the means, over draws."""
    inputs = torch.randn(128, 20, generator=torch.Generator().manual_seed(0))
    batch = inputs, torch.arange(128) % 3
    options: dict[str, Any] = {"spread": 0.2, "keep_gradients": True, "expectation": expectation}
    net = mlp(20, 3, hidden=(50,))
    learner = br.mean_field(net, br.CategoricalLikelihood(), num_data=1000, **options)
    kept = [learner.step(learner.init(seed), batch)[0].rule["gradients"] for seed in range(80)]
    flat = [
        torch.stack([torch.cat([g.flatten() for g in one[kind].values()]) for one in kept])
        for kind in ("scales", "mean")
    ]
    return float(flat[0].std(0).mean()), float(flat[1].std(0).mean())


def test_the_noise_of_gradients_is_as_the_page_says() -> None:
    scales, means = _noise(br.Draws(1))
    for expectation, share_of_scales, share_of_means in (
        (br.LocalDraws(), 0.14, 0.32),
        (br.Flipout(), 0.69, 0.63),
        (br.Draws(2), 0.70, 0.70),
        (br.Draws(2, antithetic=True), 0.80, 0.54),
    ):
        found = _noise(expectation)
        assert found[0] / scales == pytest.approx(share_of_scales, rel=0.1)
        assert found[1] / means == pytest.approx(share_of_means, rel=0.1)


def test_links_of_the_page_on_variational_posteriors_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / "variational.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


@pytest.mark.parametrize("name", ["speed", "tagi_speed"])
def test_the_tables_of_speed_are_those_of_the_committed_results(name: str) -> None:
    files = [ROOT / "benchmarks" / "results" / f"{name}{kind}.json" for kind in ("", "_gpu")]
    table = getattr(tables, name)
    assert table(*(json.loads(file.read_text()) for file in files)) in SPEED


def test_the_table_of_tagi_on_images_is_that_of_the_committed_results() -> None:
    assert len(tables.image_results()) >= 3
    assert tables.images(tables.image_results()) in IMAGES


@pytest.mark.parametrize(("kind", "order"), [("variational", "VARIATIONAL"), ("tied", "TIED")])
def test_tables_of_variational_posteriors_are_there_once_their_results_are(
    kind: str, order: str
) -> None:
    found = tables.kept(kind, getattr(tables, order))
    assert (f"<!-- {kind}:begin -->" in IMAGES) == bool(found)
    assert not found or getattr(tables, kind)(found) in IMAGES


@pytest.mark.parametrize("kind", ["hmc", "active", "many", "widths", "uci-noisy", "noisy-images"])
def test_tables_of_natural_gradients_are_those_of_the_committed_results(kind: str) -> None:
    page = (ROOT / "docs" / "natural-gradient.md").read_text()
    names, table = PAGE[kind]
    files = [ROOT / "benchmarks" / "results" / name for name in names]
    found = [json.loads(file.read_text()) for file in files if file.is_file()]
    assert (f"<!-- {kind}:begin -->" in page) == bool(found)
    assert not found or table(*found) in page
