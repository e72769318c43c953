"""Pictures of figures by data set."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

from benchmarks.pictures import by_set
from benchmarks.regression.tasks import PUBLISHED

SVG = "{http://www.w3.org/2000/svg}"


def titles(drawn: str) -> list[str]:
    return [str(one.text) for one in ElementTree.fromstring(drawn).iter(f"{SVG}title")]


def texts(drawn: str) -> list[str]:
    return [str(one.text) for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def row(entry: str, name: str, likelihood: float, deep: bool = False) -> dict[str, Any]:
    scores = {"mean": likelihood, "error": 0.1}
    return {"entry": entry, "set": name, "two_layers": deep, "log_likelihood": scores}


def test_a_mark_for_each_name_and_set_and_a_legend() -> None:
    drawn = by_set.dots(
        "Figures",
        {"a": {"boston": (1.0, 0.1), "yacht": (2.0, 0.1)}, "b<c": {"yacht": (1.5, math.nan)}},
        "height",
        line=1.0,
    )
    assert titles(drawn) == ["a, boston: 1.000", "a, yacht: 2.000", "b<c, yacht: 1.500"]
    assert {"Figures", "height", "boston", "yacht", "a", "b<c"} <= set(texts(drawn))
    across = list(ElementTree.fromstring(drawn).iter(f"{SVG}path"))
    # Two errors, and the line at 1 besides the axis.
    assert sum(p.get("class") == "line" for p in across) == 1
    assert sum(p.get("class") == "base" for p in across) == 2


def test_what_is_far_off_is_a_stroke_at_the_edge() -> None:
    near = {f"s{i}": (float(i % 3), math.nan) for i in range(20)}
    one, two = (
        by_set.dots("t", {"a": {**near, "far": (value, math.nan)}}, "y") for value in (2.0, -500.0)
    )
    count = [drawn.count('stroke-width="3"') for drawn in (one, two)]
    assert count == [0, 1]


def test_log_likelihoods_are_relative_to_the_papers() -> None:
    own = PUBLISHED[False]["boston"]["NNG-MVG"]["log_likelihood"][0]
    rows = [row("noisy_kfac", "boston", own + 0.25), row("vogn", "boston", -2.0, deep=True)]
    rows.append({"set": "boston", "setting": "table", "log_likelihood": {}})
    found = by_set.of_uci({"results": rows})
    assert list(found) == ["log_likelihood.svg", "log_likelihood_two_layers.svg"]
    one, two = found.values()
    assert "noisy_kfac, boston: 0.250" in titles(one)
    assert "BBB (published), boston: -0.164" in titles(one)
    assert "vogn, boston: 0.383" in titles(two)
    assert not any("dropout" in name for name in titles(two))
    assert by_set.of_uci({"results": []}) == {}


def test_correlations_by_set() -> None:
    rows = [
        {"method": "vogn", "set": name, "correlation": 0.8, "error": 0.01}
        for name in ("boston", "protein")
    ]
    (drawn,) = by_set.of_hmc({"results": rows}).values()
    assert {"vogn, boston: 0.800", "vogn, protein: 0.800"} <= set(titles(drawn))
    assert "NNG-BlkTri (published), boston: 0.889" in titles(drawn)
    assert not any("(published), protein" in name for name in titles(drawn))
    assert by_set.of_hmc({"results": []}) == {}
