"""All methods in one picture: calibration, scores with their errors, learning curves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from .axes import Axis, finite, limits
from .closer import bins_drawn
from .columns import Metric, columns, digits_of, order, primary, show, show_error
from .contents import Comparison, Curve, Floats, Predictions, RegressionPredictions
from .markup import figure, selector, share, subsample
from .recommendation import recommend
from .svg import Look, Plot, escape, look, shorten

_Quantity = Literal["train_loss", "validation"]
_UNIT = (-0.02, 1.02)
_HIGHLIGHTED = 6  # more coloured curves cannot be told apart


def highlighted(comparison: Comparison) -> set[int]:
    """The methods whose curves are coloured at first: the best and the recommended one."""
    advice = recommend(comparison).take
    ranked = order(comparison, primary(comparison))
    first = sorted(ranked, key=lambda i: comparison.methods[i].name != advice)
    return set(first[:_HIGHLIGHTED])


def _looks(comparison: Comparison) -> list[Look]:
    """How each method is drawn in a plot of curves."""
    coloured = highlighted(comparison)
    everyone = range(len(comparison.methods))
    return [replace(look(index), behind=index not in coloured) for index in everyone]


def _ground(x: str, y: str, label: str, rows: int) -> Plot:
    """Frame, diagonal and the 95 % band of a calibrated method: p ± 1.96 √(p (1 − p) / n)."""
    plot = Plot(Axis(x, *_UNIT), Axis(y, *_UNIT), label, height=380)
    level = np.linspace(0, 1, 41)
    if rows:
        chance = 1.96 * np.sqrt(level * (1 - level) / rows)
        low, high = np.clip(level - chance, 0, 1), np.clip(level + chance, 0, 1)
        plot.band(level, low, high, kind="chance")
    plot.line([0, 1], [0, 1], kind="ideal", title="perfect calibration")
    return plot


def _curve(predictions: Predictions) -> tuple[Floats, Floats, list[str], Floats]:
    """The method's curve (x, y), the tooltip of each point and its size."""
    if isinstance(predictions, RegressionPredictions):
        curve = predictions.calibration
        keep = subsample(len(curve.promised), 40)
        x, y = curve.promised[keep], curve.observed[keep]
        tips = [f"{a:.0%} interval holds {b:.1%}" for a, b in zip(x, y, strict=True)]
        return x, y, tips, np.full(len(x), 2.8)
    x, y, n, tips = bins_drawn(predictions)
    return x, y, tips, 1.5 + 3.5 * np.sqrt(n / n.max(initial=1))


def calibration(comparison: Comparison) -> str:
    """The coverage plot (regression) or the reliability diagram (classification)."""
    drawn = [(i, m, m.predictions) for i, m in enumerate(comparison.methods) if m.predictions]
    if comparison.task == "regression":
        title, across, up = "Coverage", "nominal level of the interval", "observed share inside"
        label, rows = "Observed against nominal coverage", len(drawn[0][2].y) if drawn else 0
        more = (
            "Grey: where a calibrated method would lie, with this many test rows, in 95 % of cases."
        )
    else:
        # The reliability bins hold different numbers of rows, so no single band fits them.
        title, across, up = "Reliability", "confidence", "accuracy"
        label, rows, more = "Accuracy against confidence", 0, "Larger marks hold more rows."
    plot = _ground(across, up, f"{label} of {len(drawn)} methods", rows)
    looks = _looks(comparison)
    for index, method, predictions in sorted(drawn, key=lambda item: not looks[item[0]].behind):
        style, (x, y, tips, sizes) = looks[index], _curve(predictions)
        titles = [f"{method.name}: {tip}" for tip in tips]
        with plot.group(style):
            plot.line(x, y, dash=style.dash, title=method.name)
            plot.points(x, y, titles, shape=style.shape, radius=sizes)
    caption = (
        "Dashed line: perfect calibration. Below the line a method is overconfident, above it too "
        f"cautious. {more} First split."
    )
    return figure(title, plot.render(), caption)


def _frame(comparison: Comparison, metric: Metric, rows: list[int]) -> Plot:
    statistics = [comparison.methods[index].statistic(metric.key) for index in rows]
    means = np.array([s.mean for s in statistics])
    sems = np.array([s.sem if math.isfinite(s.sem) else 0.0 for s in statistics])
    low, high = limits(means, tail=0.15, pad=0.0)
    # Whiskers stay in the frame unless their size would flatten the rest.
    span = high - low
    whiskers = np.concatenate([means - sems, means + sems])
    inside = whiskers[(low - span < whiskers) & (whiskers < high + span)]
    extra = [metric.target] if metric.direction == "target" else []
    low, high = limits([low, high, *extra], inside, pad=0.06)
    names = [shorten(comparison.methods[i].name, 20) for i in rows]
    y = Axis("", len(rows) - 0.4, -0.6, at=list(range(len(rows))), names=names)
    x = Axis(metric.label + (" (share)" if metric.format == "percent" else ""), low, high)
    label = f"{metric.label} of {len(rows)} methods, mean and standard error, best at the top"
    return Plot(x, y, label, height=60 + max(16.5 * len(rows), 250))


def _row(plot: Plot, comparison: Comparison, metric: Metric, place: int, index: int) -> None:
    """One method: its splits, standard error and mean; an arrow if the mean is off the frame."""
    method, style = comparison.methods[index], look(index)
    s = method.statistic(metric.key)
    digits = digits_of(metric, comparison.methods)
    mean = show(s.mean, metric, digits)
    values = np.asarray(s.values)[subsample(len(s.values), 40)]
    plot.points(values, np.full(len(values), place), kind="faint", radius=2.2)
    error = ""
    if math.isfinite(s.sem):
        error = f" ± {show_error(s.sem, metric, digits)}"
        plot.line([s.mean - s.sem, s.mean + s.sem], [place, place], kind="whisker")
    if s.mean < plot.x.low:
        plot.text(plot.x.low, place, f"◂ {mean}", kind="off-frame")
    elif s.mean > plot.x.high:
        plot.text(plot.x.high, place, f"{mean} ▸", kind="off-frame right")
    else:
        title = f"{method.name}: {mean}{error}"
        plot.points([s.mean], [place], [title], shape=style.shape, radius=5)


def _picture(comparison: Comparison, metric: Metric) -> str:
    means = [method.statistic(metric.key).mean for method in comparison.methods]
    rows = [i for i in order(comparison, metric) if math.isfinite(means[i])]
    plot = _frame(comparison, metric, rows)
    if metric.direction == "target":
        plot.line([metric.target] * 2, [plot.y.low, plot.y.high], kind="ideal")
    for place, index in enumerate(rows):
        with plot.group(look(index)):
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
        caption = "One split cannot show how much of a difference is chance."
    body = f'<div class="picker">{choices}</div><div id="scores">{panels}</div>'
    return figure("Scores", body, caption)


def _curve_axis(label: str, values: list[Floats], *, may_log: bool) -> Axis:
    """A logarithmic axis for positive values over a wide range, else a linear one."""
    numbers = finite(*values)
    if may_log and len(numbers) and numbers.min() > 0 and numbers.max() > 30 * numbers.min():
        return Axis(f"{label} (log scale)", numbers.min() / 1.1, numbers.max() * 1.1, log=True)
    return Axis(label, *limits(numbers, tail=0.03))


def _curves(comparison: Comparison, quantity: _Quantity) -> list[tuple[int, int, Curve]]:
    """The curves to draw, as (method, split, curve): of all splits only if they stay legible."""
    curves = [
        (index, split, curve)
        for index, method in enumerate(comparison.methods)
        for split, curve in enumerate(method.curves)
        if len(finite(getattr(curve, quantity)))
    ]
    return curves if len(curves) <= 60 else [item for item in curves if item[1] == 0]


def _learning_curves(comparison: Comparison, quantity: _Quantity, label: str) -> str:
    curves = _curves(comparison, quantity)
    if not curves:
        return ""
    every = [getattr(curve, quantity) for _, _, curve in curves]
    y = _curve_axis(label, every, may_log=quantity == "train_loss")
    x = Axis("epoch", *limits(*(curve.epochs for _, _, curve in curves), pad=0.02))
    methods = len({index for index, _, _ in curves})
    plot = Plot(x, y, f"{label} by epoch of {methods} methods")
    points = share(8000, len(curves), 200)
    looks = _looks(comparison)
    # Grey methods come first, and first splits last, on top of the faint others.
    for index, split, curve in sorted(curves, key=lambda it: (not looks[it[0]].behind, -it[1])):
        keep = subsample(len(curve.epochs), points)
        style, name = looks[index], comparison.methods[index].name
        kind, title = "line" if split == 0 else "line faint-line", f"{name}, split {split + 1}"
        values = np.asarray(getattr(curve, quantity))[keep]
        with plot.group(style):
            plot.line(curve.epochs[keep], values, kind=kind, dash=style.dash, title=title)
    return plot.render()


def learning(comparison: Comparison) -> str:
    """The two figures side by side, or a sentence where no method learns by epochs."""
    lines = ""
    if any(split > 0 for _, split, _ in _curves(comparison, "train_loss")):
        lines = "Strong line: first split; faint lines: the other splits. "
    loss = _learning_curves(comparison, "train_loss", "training loss")
    score = _learning_curves(comparison, "validation", comparison.validation_label)
    drawn = (
        ("Training loss", loss, "A loss that still falls at the end needs more epochs."),
        ("Validation", score, "On the test rows, in the units of the table."),
    )
    figures = [figure(title, picture, lines + text) for title, picture, text in drawn if picture]
    if not figures:
        return '<p class="muted">No method recorded a learning curve.</p>'
    return f'<div class="grid">{"".join(figures)}</div>'
