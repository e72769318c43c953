"""Every metric as a picture: mean, standard error and the single splits of each method."""

from __future__ import annotations

import math

import numpy as np

from .axes import Axis, limits
from .columns import Metric, columns, digits_of, order, primary, show, show_error, statistic
from .contents import Comparison
from .markup import figure, selector, share, subsample
from .palette import look
from .svg import Plot, escape, shorten


def _frame(comparison: Comparison, metric: Metric, rows: list[int]) -> Plot:
    means, whiskers = [], []
    for index in rows:
        s = statistic(comparison.methods[index], metric.key)
        sem = s.sem if math.isfinite(s.sem) else 0.0
        means.append(s.mean)
        whiskers.extend([s.mean - sem, s.mean + sem])
    low, high = limits(means, tail=0.15, pad=0.0)
    # Whiskers belong into the frame unless their own size would flatten the rest.
    span = high - low
    inside = [w for w in whiskers if low - span < w < high + span]
    extra = [metric.target] if metric.direction == "target" else []
    low, high = limits([low, high, *extra], inside, pad=0.06)
    names = [shorten(comparison.methods[i].name, 20) for i in rows]
    y = Axis("", len(rows) - 0.4, -0.6, at=list(range(len(rows))), names=names)
    x = Axis(metric.label + (" (share)" if metric.format == "percent" else ""), low, high)
    label = f"{metric.label} of {len(rows)} methods, mean and standard error, best at the top"
    return Plot(x, y, label, height=60 + max(16.5 * len(rows), 250))


def _row(plot: Plot, comparison: Comparison, metric: Metric, place: int, index: int) -> None:
    method, style = comparison.methods[index], look(index)
    s = statistic(method, metric.key)
    digits = digits_of(metric, comparison.methods)
    error = f" ± {show_error(s.sem, metric, digits)}" if math.isfinite(s.sem) else ""
    title = f"{method.name}: {show(s.mean, metric, digits)}{error}"
    plot.begin(style)
    values = np.asarray(s.values)[subsample(len(s.values), share(400, 10, 40))]
    plot.points(values, np.full(len(values), place), kind="faint", radius=2.2)
    if math.isfinite(s.sem):
        plot.line([s.mean - s.sem, s.mean + s.sem], [place, place], kind="whisker")
    if plot.x.low <= s.mean <= plot.x.high:
        plot.points([s.mean], [place], [title], shape=style.shape, radius=5)
    elif math.isfinite(s.mean):
        left = s.mean < plot.x.low
        text = f"◂ {show(s.mean, metric, digits)}" if left else f"{show(s.mean, metric, digits)} ▸"
        edge = plot.x.low if left else plot.x.high
        plot.text(edge, place, text, kind="off-frame" if left else "off-frame right")
    plot.end()


def _picture(comparison: Comparison, metric: Metric) -> str:
    rows = [
        i
        for i in order(comparison, metric)
        if math.isfinite(statistic(comparison.methods[i], metric.key).mean)
    ]
    plot = _frame(comparison, metric, rows)
    if metric.direction == "target":
        plot.line([metric.target] * 2, [plot.y.low, plot.y.high], kind="ideal")
    for place, index in enumerate(rows):
        _row(plot, comparison, metric, place, index)
    return plot.render()


def scores(comparison: Comparison) -> str:
    """The figure with one panel per metric and a selector for the metric."""
    first = primary(comparison)
    shown = [first, *(m for m in columns(comparison) if m.key != first.key)]
    panels = "".join(
        f'<div class="panel" data-panel="{escape(m.key)}">{_picture(comparison, m)}'
        f"<p>{escape(m.label)}{': ' + escape(m.hint) if m.hint else ''}.</p></div>"
        for m in shown
    )
    choices = selector("Metric", [(m.key, m.label) for m in shown], "scores")
    caption = "Large mark and bar: mean ± standard error over the splits. Small dots: the splits."
    if comparison.splits == 1:
        caption = "One split: how much of a difference is chance cannot be said."
    return figure(
        "Scores", f'<div class="picker">{choices}</div><div id="scores">{panels}</div>', caption
    )
