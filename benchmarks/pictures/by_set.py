"""Dot plots by data set: one mark for each method and set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bayesrule.app.report.axes import Axis, limits
from bayesrule.app.report.svg import Look, Plot, escape, look, marker, number
from benchmarks.hmc.reference import COLUMNS, PUBLISHED
from benchmarks.pictures.panels import document
from benchmarks.regression.ranks import of_entry
from benchmarks.regression.tasks import PUBLISHED as FIGURES

WIDTH, HEIGHT, SIDE, TOP = 680.0, 330.0, 180.0, 30.0
SIZE = {"width": WIDTH, "height": HEIGHT}
THEIRS = " (published)"
# The paper's own method, the zero of the picture.
ORIGIN = "NNG-MVG"
Series = Mapping[str, Mapping[str, tuple[float, float]]]
"""A value and its standard error by name and set; NaN if there is no error."""


def dots(title: str, series: Series, label: str, *, line: float | None = None) -> str:
    """A mark with its standard error for each name and set, with a legend beside the frame.

    Outliers are strokes at the edge of the frame; `line` draws a line at that value.
    """
    sets = list(dict.fromkeys(name for each in series.values() for name in each))
    values = [value for each in series.values() for value, _ in each.values()]
    level = [] if line is None else [line]
    across = Axis("", -0.6, len(sets) - 0.4, at=range(len(sets)), names=sets)
    plot = Plot(across, Axis(label, *limits(values, level, tail=0.08)), title, **SIZE)
    if line is not None:
        plot.line([-0.6, len(sets) - 0.4], [line, line], kind="base")
    for place, (name, each) in enumerate(series.items()):
        shift = 0.7 * ((place + 0.5) / len(series) - 0.5)
        _marks(plot, _look(name, place), name, [sets.index(one) + shift for one in each], each)
    head = f'<text class="title" x="12" y="18">{escape(title)}</text>'
    drawn = f'<svg y="{TOP}" width="{WIDTH}" height="{HEIGHT}">{plot.render()}</svg>'
    return document(head + drawn + _legend(list(series)), WIDTH + SIDE, HEIGHT + TOP)


def _look(name: str, place: int) -> Look:
    """A colour for each name, and a shape for published figures."""
    one = look(place)
    return replace(one, shape="diamond") if name.endswith(THEIRS) else one


def _marks(
    plot: Plot,
    one: Look,
    name: str,
    xs: Sequence[float],
    each: Mapping[str, tuple[float, float]],
) -> None:
    middle, error = np.asarray(list(each.values()), dtype=np.float64).reshape(-1, 2).T
    tips = [f"{name}, {where}: {value:.3f}" for where, (value, _) in each.items()]
    inward, low, high = 0.06 * (plot.y.high - plot.y.low), plot.y.low, plot.y.high
    with plot.group(one):
        plot.strokes(xs, middle - error, middle + error, kind="line", wide=1.5)
        plot.points(xs, middle, shape=one.shape, titles=tips)
        for beyond, edge in ((middle < low, low + inward), (middle > high, high - inward)):
            where, end = np.asarray(xs)[beyond], middle[beyond]
            plot.strokes(where, np.full_like(end, edge), end, kind="line", wide=3.0)


def _legend(names: Sequence[str]) -> str:
    found = []
    for row, name in enumerate(names):
        one, y = _look(name, row), TOP + 40 + 22 * row
        mark = marker(one.shape, WIDTH + 14, y, 4)
        found.append(f'<g class="{one.colour}">{mark} class="point"/></g>')
        place = f'x="{number(WIDTH + 28)}" y="{number(y)}"'
        found.append(f'<text {place} dy=".34em">{escape(name)}</text>')
    return "".join(found)


def of_uci(result: dict[str, Any]) -> dict[str, str]:
    """Log-likelihoods relative to the paper's noisy K-FAC by file name: one and two layers."""
    found, rows = {}, result["results"]
    for deep, file in ((False, "log_likelihood.svg"), (True, "log_likelihood_two_layers.svg")):
        names = dict.fromkeys(one["entry"] for one in rows if one.get("two_layers") is deep)
        own = {entry: of_entry(rows, entry, deep) for entry in names}
        sets = dict.fromkeys(name for each in own.values() for name in each)
        if not sets:
            continue
        series: dict[str, dict[str, tuple[float, float]]] = {
            entry: {name: _off(name, deep, *_pair(row)) for name, row in each.items()}
            for entry, each in own.items()
        }
        for who in (who for who in FIGURES[deep]["boston"] if who != ORIGIN):
            series[who + THEIRS] = {
                name: _off(name, deep, *FIGURES[deep][name][who]["log_likelihood"]) for name in sets
            }
        title = f"Test log-likelihood, {'two hidden layers' if deep else 'one hidden layer'}"
        found[file] = dots(
            title,
            series,
            f"minus that published for {ORIGIN} (strokes at the edge: beyond)",
            line=0.0,
        )
    return found


def _pair(row: dict[str, Any]) -> tuple[float, float]:
    return row["log_likelihood"]["mean"], row["log_likelihood"]["error"]


def _off(name: str, deep: bool, value: float, error: float) -> tuple[float, float]:
    return value - FIGURES[deep][name][ORIGIN]["log_likelihood"][0], error


def of_hmc(result: dict[str, Any]) -> dict[str, str]:
    """Correlations with the variances of NUTS by file name."""
    rows = result["results"]
    series: dict[str, dict[str, tuple[float, float]]] = {}
    for one in rows:
        series.setdefault(one["method"], {})[one["set"]] = one["correlation"], one["error"]
    sets = [name for name in dict.fromkeys(one["set"] for one in rows) if name in PUBLISHED]
    for place, who in enumerate(COLUMNS):
        published = {name: (PUBLISHED[name][place], float("nan")) for name in sets}
        if published:
            series[who + THEIRS] = published
    title = "Correlation of predictive variances with those of NUTS"
    return {"correlations.svg": dots(title, series, "Pearson's")} if rows else {}
