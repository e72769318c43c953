"""The examples run and draw what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import bayesrule as br
from benchmarks import gallery

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
HERE = {**os.environ, "PYTHONPATH": f"{EXAMPLES.parent}:{EXAMPLES.parent / 'src'}"}
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


# Those that draw with matplotlib


def titles(figure: Any) -> list[str]:
    return [title for axis in figure.axes if (title := axis.get_title("left"))]


def test_probabilities_are_drawn_beside_how_often_they_are_right() -> None:
    found = titles(example("calibration").picture(epochs=1))
    names = [title.split("\n")[0] for title in found]
    assert names == ["map", "laplace", "ivon, as it comes", "ivon, temperature 1", "ivon, chosen"]
    assert all(re.search(r"accuracy \d+%, NLL \d\.\d\d, ECE 0\.\d+$", title) for title in found)


def test_unknown_digits_are_doubted_more() -> None:
    module = example("ood")
    _, known, unknown = module.data()
    assert (len(known), len(unknown)) == (401, 896)
    for name, (seen, unseen) in module.doubts(epochs=20).items():
        assert float(br.metrics.auroc(seen, unseen)) > 0.8, name
    assert len(titles(module.picture(epochs=1))) == 5


def test_standard_deviations_are_close_to_rank_one() -> None:
    module = example("k_tied")
    std = module.learned(epochs=20).variance()[module.LAYER].sqrt()
    assert float(module.explained(std)[0]) > 0.9
    assert titles(module.picture(epochs=1))[0] == "standard deviations, learned"


def test_what_a_transformer_never_saw_is_apart_from_what_it_saw() -> None:
    module = example("transformer")
    (line, first), places = module.lines(module.pairs(3), seed=0), module.pairs(3)
    assert line[range(6), places[:, 0]].tolist() == [0] * 6
    assert line[range(6), places[:, 1]].tolist() == [1] * 6
    assert first.tolist() == [int(b < a) for a, b in places.tolist()]
    found = titles(module.picture(epochs=1))
    assert [title.split("\n")[0] for title in found] == ["map", "ivon"]


def test_adapters_alone_are_learned() -> None:
    module = example("lora")
    net = module.pretrained()
    small = module.adapted(net)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(small(x), net(x))
    learned = {name for name, weight in small.named_parameters() if weight.requires_grad}
    assert len(learned) == 6
    belief = br.ivon(small, br.CategoricalLikelihood(), num_data=20).init().posterior
    assert set(belief.mean) == learned
    assert len(titles(module.picture(sizes=(400,), trials=1))) == 2


def test_each_net_of_many_has_its_panel() -> None:
    module = example("many_nets")
    figure = module.picture(epochs=2)
    assert len(figure.axes) == module.SETS == len(module.data())


def test_parts_that_are_gone_are_remembered() -> None:
    module = example("continual")
    x, y = module.parts()[0]
    (*_, forgot), (*_, kept) = module.forgetting(500), module.remembering(500)
    errors = [float((run.predict(x).mean - y).square().mean().sqrt()) for run in (forgot, kept)]
    assert 2.0 * errors[1] < errors[0]
    assert len(titles(module.picture(epochs=2))) == 6


def test_each_choice_is_drawn_over_the_posterior() -> None:
    module = example("four_choices")
    a, b = torch.rand(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net = module.Curve(0.0, 0.0)
    x, y = module.data()
    found = module.posterior(a, b)
    for i, j in ((0, 0), (2, 1)):
        weight = torch.stack([a[i, j], b[i, j]])
        outputs = torch.func.functional_call(net, {"weight": weight}, (x,))
        log = torch.distributions.Normal(outputs, 0.4).log_prob(y).sum() - 0.5 * weight @ weight
        log_0 = torch.distributions.Normal(0.0 * y, 0.4).log_prob(y).sum()
        nothing = module.posterior(torch.zeros(1), torch.zeros(1))[0]
        assert float((found[i, j] / nothing).log()) == pytest.approx(float(log - log_0))
    assert titles(module.picture(steps=3)) == ["shape", "looks", "curvature", "moves"]


def test_places_are_rounded_and_words_are_not() -> None:
    drawn = '<path d="M 1.23456 7"/><text x="2.71828">ECE 0.084</text>'
    rounded = example("_script")._rounded(drawn)
    assert rounded == '<path d="M 1.23 7"/><text x="2.71">ECE 0.084</text>'


@pytest.mark.parametrize("name", sorted(file.stem for file in gallery.examples()))
def test_all_examples_end_alike(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert f"python examples/{name}.py [FILE.svg]\n" in text
    end = text.split('if __name__ == "__main__":\n    from _script import draw\n')[1]
    assert re.search(r"^    draw\(.+, __doc__\)\n$", end, flags=re.MULTILINE)


def test_help_says_what_is_drawn_and_runs_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "graphical_models.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=HERE, cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
    assert "python examples/graphical_models.py [FILE.svg]" in done.stdout
