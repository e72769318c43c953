"""Pictures of training: standard deviations, bounds, signal-to-noise ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesrule.app.report.contents import Floats
from benchmarks.pictures.panels import Line, Panel, heat_maps, panel, sheet
from benchmarks.pictures.thumbnails import version


def of_tied(result: dict[str, Any]) -> dict[str, str]:
    """Pictures by file name of a `-tied` task: σ and its low ranks, −ELBO, SNR."""
    found, results = {}, result["results"]
    first = next((one["deviations"] for one in results if "deviations" in one), None)
    if first:
        whole = np.asarray(first["full"], dtype=np.float64)
        mean = float(whole.mean())
        shown = {"mean-field": whole / mean}
        shown |= {f"rank {k}": version(first, k).numpy() / mean for k in (1, 2, 3)}
        what = f"standard deviations of {first['name']} as multiples of their mean, {mean:.3g}"
        found["deviations.svg"] = heat_maps(shown, f"{result['title']}: {what} (means over blocks)")
    bounds, ratios = [], []
    for one in results:
        steps, loss, kl = np.asarray(one["curve"], dtype=np.float64).T
        bounds.append(Line(one["method"], steps, loss + kl))
        marks = sorted((int(step), each["median"]) for step, each in one["snr"].items())
        if marks:
            ratios.append(Line(one["method"], *np.asarray(marks, dtype=np.float64).T))
    panels = [panel(f"{result['title']}: −ELBO, all seeds", bounds, "step", "nats/datum", log=True)]
    if ratios:
        title = f"Signal-to-noise ratio of the scales' gradients (median, {len(ratios)} runs)"
        panels.append(panel(title, ratios, "step", "E[g²] / Var[g]", log=True))
    found["training.svg"] = sheet(panels)
    return found


def of_variational(result: dict[str, Any]) -> dict[str, str]:
    """Pictures by file name of a `-preact` task: the ELBO of each setting.

    One panel for each method and temperature, because bounds at different temperatures are not
    comparable; the lines are the multipliers. If a temperature has several multipliers, the result
    of each is drawn, too: the figure on early stopping of Unlu & Aitchison (2021).
    """
    groups: dict[tuple[str, float], dict[str, Line]] = {}
    for one in result["results"]:
        # Ways of predicting share a training, and a point estimate has no meaningful bound.
        if one["method"] != "map":
            key, name = (one["method"], one["temperature"]), f"scales × {one['scale_multiplier']:g}"
            groups.setdefault(key, {})[name] = Line(name, *_bound(one))
    panels = [
        panel(
            f"{method}, temperature {temperature:g}", [*lines.values()], "epoch", "ELBO per datum"
        )
        for (method, temperature), lines in groups.items()
    ]
    found = {"elbo.svg": sheet(panels)} if panels else {}
    if against := _against_multipliers(result["results"]):
        found["multipliers.svg"] = sheet(against)
    return found


def _against_multipliers(results: Sequence[dict[str, Any]]) -> list[Panel]:
    """Log-likelihood and accuracy on the test images, and the last ELBO, for each temperature."""
    groups: dict[float, dict[str, dict[float, tuple[float, float, float]]]] = {}
    for one in results:
        if one["method"] != "map":
            name = f"{one['method']}, {one['way']}"
            last = float(_bound(one)[1][-1])
            figures = -one["test"]["nll"], one["test"]["accuracy"], last
            curves = groups.setdefault(one["temperature"], {})
            curves.setdefault(name, {})[one["scale_multiplier"]] = figures
    panels = []
    for temperature, curves in groups.items():
        shown = {name: dict(sorted(c.items())) for name, c in curves.items() if len(c) > 1}
        multipliers = sorted({m for curve in shown.values() for m in curve})
        for place, what in enumerate(("test log-likelihood", "test accuracy in %", "last ELBO")):
            lines = [
                Line(name, [*curve], [figures[place] for figures in curve.values()])
                # Ways of predicting share a training.
                for name, curve in shown.items()
                if place < 2 or name.endswith("mean")
            ]
            if lines:
                title = f"{what}, temperature {temperature:g}"
                x = "multiplier of the scales' learning rate"
                panels.append(panel(title, lines, x, "", doublings=multipliers, among=[*shown]))
    return panels


def _bound(one: dict[str, Any]) -> tuple[Floats, Floats]:
    """Epochs and the ELBO after each: of the mean loss of an epoch, and what it leaves out."""
    rows = one["history"]
    if not all("kl" in row for row in rows):
        return _column(rows, "epoch"), _column(rows, "elbo")
    spread = one["temperature"] * _column(rows, "kl")
    return _column(rows, "epoch"), -_column(rows, "loss") - _column(rows, "price") - spread


def _column(rows: Sequence[dict[str, Any]], name: str) -> Floats:
    return np.asarray([row.get(name, 0.0) for row in rows], dtype=np.float64)
