"""Pictures of the variational benchmarks: what is drawn, where, and in which colour."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.pictures import heat, panels, training
from benchmarks.pictures.panels import Line

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[str]:
    return [str(one.text) for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_cells_fill_the_matrix_and_follow_the_scale() -> None:
    matrix = np.linspace(0.0, 1.0, 12).reshape(3, 4)
    root = ElementTree.fromstring(heat.cells(matrix, 0.0, 1.0, (0, 0, 10, 10)))
    paths = {str(p.get("fill")): str(p.get("d")) for p in root.iter("path")}
    areas = [int(n) for d in paths.values() for n in re.findall(r"h(\d+)v1", d)]
    assert sum(areas) == 12
    assert paths[heat.colour(0)] == "M0 0h1v1h-1z"
    assert paths[heat.colour(heat.LEVELS - 1)] == "M3 2h1v1h-1z"
    level = heat.steps(np.array([[-9.0, 0.5, 9.0]]), 0.0, 1.0)
    assert level.tolist() == [[0, heat.LEVELS // 2, heat.LEVELS - 1]]


def test_neighbours_of_one_colour_are_one_cell() -> None:
    drawn = heat.cells(np.ones((2, 5)), 0.0, 1.0, (0, 0, 10, 10))
    assert drawn.count("M") == 2
    assert "M0 1h5v1h-5z" in drawn


def test_colours_go_from_dark_to_light() -> None:
    light = [
        sum(int(heat.colour(k)[i : i + 2], 16) * w for i, w in ((1, 0.3), (3, 0.6), (5, 0.1)))
        for k in range(heat.LEVELS)
    ]
    assert light == sorted(light)


def test_heat_maps_have_one_scale() -> None:
    first = np.linspace(1.0, 3.0, 16).reshape(4, 4)
    drawn = panels.heat_maps({"whole": first, "flat": np.full((4, 4), 3.0)}, "Two of <them>")
    assert texts(drawn)[:3] == ["Two of <them>", "whole", "flat"]
    assert {"1.0", "2.0", "2.5"} & set(texts(drawn)[3:])
    inner = ElementTree.fromstring(drawn).findall(f"{SVG}svg")
    assert len(inner) == 3, "two matrices and the scale"
    assert [p.get("fill") for p in inner[1]] == [heat.colour(heat.LEVELS - 1)]


def test_lines_of_one_name_share_a_place_in_the_legend() -> None:
    lines = [Line("a", [1, 2], [1.0, 10.0]), Line("a", [1, 2], [2.0, 20.0])]
    drawn = panels.sheet([panels.panel("Title", [*lines, Line("b", [1], [3.0])], "x", "y")])
    assert texts(drawn).count("a") == texts(drawn).count("b") == 1
    root = ElementTree.fromstring(drawn)
    groups = [g.get("class") for g in root.iter(f"{SVG}g") if g.get("data-method") is not None]
    assert groups == ["series c0", "series c0", "series c1"]
    # Close together they are told apart by their dashes, and the legend has the same ones.
    dashes = [
        p.get("stroke-dasharray") for p in root.iter(f"{SVG}path") if p.get("class") == "line"
    ]
    assert dashes == [None, None, panels.DASHES[1], "", panels.DASHES[1]]


def test_a_line_looks_alike_in_a_panel_that_lacks_another() -> None:
    drawn = panels.sheet([panels.panel("", [Line("b", [1], [3.0])], "x", "y", among="ab")])
    groups = [g.get("class") for g in ElementTree.fromstring(drawn).iter(f"{SVG}g")]
    assert "series c1" in groups
    assert groups.count("c1") == 1, "in the legend too"
    assert "c0" not in groups


def test_a_long_name_gets_room_beside_its_panel() -> None:
    def width(name: str) -> float:
        drawn = panels.sheet([panels.panel("Title", [Line(name, [1, 2], [1.0, 2.0])], "x", "y")])
        return float(ElementTree.fromstring(drawn).get("width") or 0)

    name = "variational_laplace, mean"
    assert width(name) - width("a") > 40
    assert width(name) > panels.WIDTH + 36 + 7 * len(name)


@pytest.mark.parametrize("values", [[], [float("nan")], [-1.0, 0.0]])
def test_nothing_to_draw_on_a_logarithmic_axis_is_no_fault(values: list[float]) -> None:
    line = Line("a", list(range(len(values))), values)
    assert "a" in texts(panels.sheet([panels.panel("Title", [line], "x", "y", log=True)]))


@pytest.mark.parametrize(("largest", "ticks"), [(2.0, {"1.25"}), (1000.0, {"10", "100"})])
def test_numbers_that_are_close_have_a_plain_axis(largest: float, ticks: set[str]) -> None:
    line = Line("a", [1, 2], [1.0, largest])
    assert ticks <= set(texts(panels.sheet([panels.panel("", [line], "x", "y", log=True)])))


def tied_result(**more: Any) -> dict[str, Any]:
    one = {
        "method": "mean_field",
        "curve": [[10, 2.0, 3.0], [20, 1.0, None]],
        "snr": {"20": {"median": 4.0, "mean": 9.0}, 10: {"median": 2.0, "mean": 9.0}},
        **more,
    }
    return {"title": "Small", "results": [one]}


def test_pictures_of_tied_runs() -> None:
    small = {"name": "w", "full": [[1.0, 2.0]], "left": [[1.0]], "right": [[1.0, 2.0]]}
    drawn = training.of_tied(tied_result(deviations=small))
    assert list(drawn) == ["deviations.svg", "training.svg"]
    assert {"mean-field", "rank 1", "rank 2", "rank 3"} <= set(texts(drawn["deviations.svg"]))
    assert "multiples of their mean, 1.5 " in texts(drawn["deviations.svg"])[0]
    assert "Small: −ELBO, all seeds" in texts(drawn["training.svg"])
    assert list(training.of_tied(tied_result(snr={}))) == ["training.svg"]


def variational_result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [("map", "mean"), ("mean_field", "mean"), ("mean_field", "10 draws")]
    scores = {"nll": 0.5, "accuracy": 90.0}
    common = {"temperature": 0.5, "scale_multiplier": 10.0, "history": rows, "test": scores}
    return {"results": [{"method": m, "way": way, **common} for m, way in kinds]}


def test_a_bound_counts_the_price_and_the_tempered_divergence() -> None:
    rows = [{"epoch": 1, "loss": 1.0, "kl": 4.0, "price": 0.25, "elbo": -9.0}]
    (one, *_) = variational_result(rows)["results"]
    assert [part.tolist() for part in training._bound(one)] == [[1.0], [-3.25]]
    one["history"] = [{"epoch": 1, "loss": 1.0, "elbo": -9.0}]
    assert training._bound(one)[1].tolist() == [-9.0]


def test_one_panel_for_each_method_and_temperature() -> None:
    rows = [{"epoch": k, "loss": 1.0 / k, "kl": 4.0, "elbo": -9.0} for k in (1, 2)]
    result = variational_result(rows)
    more = {**result["results"][1], "scale_multiplier": 30.0}
    found = texts(training.of_variational({"results": [*result["results"], more]})["elbo.svg"])
    assert found.count("mean_field, temperature 0.5") == 1
    assert found.count("scales × 10") == found.count("scales × 30") == 1
    assert not any("map" in text for text in found)
    assert training.of_variational({"results": result["results"][:1]}) == {}


def test_multipliers_of_the_scales_rate_are_drawn_where_there_are_several() -> None:
    rows = [{"epoch": k, "loss": 1.0 / k, "kl": 4.0, "elbo": -9.0} for k in (1, 2)]
    results = variational_result(rows)["results"]
    assert "multipliers.svg" not in training.of_variational({"results": results})
    more = [{**one, "scale_multiplier": 30.0} for one in results[1:]]
    others = [{**one, "temperature": 0.1} for one in results]
    drawn = training.of_variational({"results": [*results, *more, *others]})["multipliers.svg"]
    found = texts(drawn)
    titles = [text for text in found if "temperature" in text]
    what = ("test log-likelihood", "test accuracy in %", "last ELBO")
    assert titles == [f"{one}, temperature 0.5" for one in what]
    # Both ways of predicting, but one training.
    assert found.count("mean_field, mean") == 3
    assert found.count("mean_field, 10 draws") == 2
    assert {"10", "30"} <= set(found)


def test_files_have_the_name_of_the_task(tmp_path: Path) -> None:
    (file,) = panels.write(tmp_path / "new", "task", {"elbo.svg": "<svg/>"})
    assert file == tmp_path / "new" / "task-elbo.svg"
    assert file.read_text() == "<svg/>"
