"""The examples run and draw what they say."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bayesrule as br

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels(drawn: str) -> Iterator[dict[str, list[str]]]:
    """The classes of the paths, and the texts, of each panel."""
    for panel in ElementTree.fromstring(drawn).findall(f"{SVG}svg"):
        texts = list(panel.iter(f"{SVG}text"))
        yield {
            "paths": [path.get("class", "") for path in panel.iter(f"{SVG}path")],
            "titles": [text.text or "" for text in texts if text.get("class") == "title"],
            "notes": [text.text or "" for text in texts if text.get("class") == "note"],
            "points": [one.get("class", "") for one in panel.iter(f"{SVG}g") if len(one)],
        }


@pytest.mark.parametrize("name", ["one_dimension", "variational"])
def test_beliefs_about_one_curve_are_drawn_in_four_panels(name: str) -> None:
    found = list(panels(example(name).picture(epochs=3)))
    assert len(found) == 4
    for one in found:
        assert len(one["titles"]) == 1
        for kind in ("mean", "outer", "inner"):
            assert one["paths"].count(kind) == 1


def test_correlated_beliefs_stand_beside_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nutpie")
    module = example("natural_gradient")
    # With more noise the sampler has shorter ways to go.
    monkeypatch.setattr(module, "NOISE", br.GaussianLikelihood(noise=2.0))
    short = {"draws": 4, "warmup": 10, "chains": 1, "compile": False}
    found = list(panels(module.picture(epochs=2, **short)))
    names = [title.split(":")[0] for one in found for title in one["titles"]]
    assert names == ["mean_field", "noisy_kfac", "noisy_full", "NUTS"]
    assert [one["paths"].count("edge") for one in found] == [2, 2, 2, 0]
    assert [one["paths"].count("outer") for one in found] == [1] * 4
    assert all(re.match(r"ELBO −\d+ nats, r = ", one["notes"][0]) for one in found[:3])
    assert found[3]["notes"][0].startswith("4 draws, R-hat of outputs ")


def test_without_a_sampler_there_are_three_beliefs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    module = example("natural_gradient")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nutpie" else real(name)
    )
    found = list(panels(module.picture(epochs=2)))
    assert len(found) == 3
    assert not any("edge" in one["paths"] or "NUTS" in one["notes"][0] for one in found)


def test_labels_and_their_worth_are_drawn() -> None:
    found = list(panels(example("active").picture(trials=1, steps=2, epochs=2)))
    titles = [title for one in found for title in one["titles"]]
    assert titles == [
        "labels at random",
        "labels of the largest variance",
        "test RMSE, 1 trials",
    ]
    for belief in found[:2]:
        assert {"pool", "first", "asked"} <= set(belief["points"])
        assert belief["paths"].count("belief") == 1
    assert found[2]["notes"] == ["at random", "largest variance", "EPIG"]
    # Each is drawn as a line and in the legend.
    assert [found[2]["paths"].count(k) for k in ("random", "variance", "epig")] == [2] * 3


def test_binary_weights_know_less_away_from_the_moons() -> None:
    module = example("two_moons")
    batch, places = module.data(), module.places()
    run = module.learned(batch, epochs=300)
    weights = run.state.posterior.sample(torch.Generator().manual_seed(0))
    assert all(bool((value.abs() == 1.0).all()) for value in weights.values())
    doubt = run.predict(places, br.Draws(32)).mutual_information
    away = torch.cdist(places, batch[0]).amin(1)
    assert float(doubt[away > 1.0].mean()) > 2.0 * float(doubt[away < 0.2].mean())


def test_the_plane_is_drawn_in_two_panels() -> None:
    found = list(panels(example("two_moons").picture(epochs=2)))
    assert [len(one["titles"]) for one in found] == [1, 1]
    kinds = [{path.split()[0] for path in one["paths"] if " l" in path} for one in found]
    assert kinds[0] <= {"upper", "lower"}
    assert kinds[1] == {"unknown"}
    assert all({"of-upper", "of-lower"} <= set(one["points"]) for one in found)


def test_binary_weights_know_less_away_from_the_curve() -> None:
    module = example("binary_weights")
    batch, grid = module.data(), torch.linspace(-5.0, 5.0, 41).unsqueeze(1)
    binary, straight = module.learners(500).values()
    run = br.fit(binary, batch, epochs=500, batch_size=100, progress=False)
    away = (grid - batch[0].T).abs().amin(1)
    doubt = run.predict(grid).epistemic.sqrt()[:, 0]
    assert float(doubt[away > 1.0].mean()) > 2.0 * float(doubt[away < 0.2].mean())
    # The straight-through estimator is one net, and has no doubt anywhere.
    state, _ = straight.step(straight.init(seed=0), batch)
    assert float(br.predict(straight, state, grid).epistemic.max()) == 0.0


def test_both_ways_to_learn_signs_are_drawn() -> None:
    found = list(panels(example("binary_weights").picture(steps=2)))
    assert [one["titles"][0].split(":")[0] for one in found] == ["bayesbinn", "ste"]
    assert all(one["paths"].count("mean") == 1 for one in found)


def test_minima_are_drawn_in_two_panels() -> None:
    found = list(panels(example("minima").picture(steps=100)))
    assert [one["titles"][0].split(":")[0] for one in found] == ["Himmelblau", "star"]
    assert all({"component", "minimum"} <= set(one["points"]) for one in found)


def test_dropout_is_drawn_beside_the_same_net_without_it() -> None:
    found = list(panels(example("dropout").picture(epochs=2)))
    assert [one["titles"][0].split(":")[0] for one in found] == ["adam", "dropout"]
    assert all(one["paths"].count("inner") == 1 for one in found)


def test_clusters_and_states_are_drawn_beside_each_other() -> None:
    module = example("graphical_models")
    found = list(panels(module.picture()))
    assert [one["titles"][0] for one in found] == [
        "mixture: 3 of 6 components",
        "states: 3 of the series",
    ]
    assert found[0]["paths"].count("ellipse") == 3
    assert found[1]["paths"].count("level") == 1
    # The belief knows the level of each step that was seen, and of those in the gaps.
    model, truth = module.chain(1000), torch.arange(240) // 40 % 3
    levels = model.means_[model.predict(module.series()), 0]
    wanted = torch.tensor(module.LEVELS, dtype=torch.float64)[truth]
    assert float(((levels - wanted).abs() < 1.0).double().mean()) > 0.97


def test_functions_and_a_series_are_drawn_in_four_panels() -> None:
    module = example("gaussian_process")
    found = list(panels(module.picture(num=30)))
    assert [one["titles"][0].split(":")[0] for one in found] == [
        "numbers",
        "answers",
        "counts",
        "a series, 36 steps ahead",
    ]
    assert [one["paths"].count("mean") for one in found] == [1] * 4
    assert [one["paths"].count("outer") for one in found] == [1, 0, 1, 1]
    # Less is known of the curve where there are no points.
    low, high = module.numbers(60).bands["inner"]
    width, at = high - low, module.GRID[:, 0]
    gap = (at > 4.5) & (at < 5.5)
    assert float(width[gap].min()) > 2.0 * float(width[(at > 1.0) & (at < 3.0)].mean())
