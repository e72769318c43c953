"""A closer look at one method: intervals or classes, and the two kinds of uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .axes import Axis, finite, limits
from .columns import order, primary
from .contents import (
    ClassificationPredictions,
    Comparison,
    Floats,
    Predictions,
    RegressionPredictions,
)
from .markup import count, facts, figure, selector, share, subsample, swatch
from .svg import Look, Plot, escape, look, shorten

_Z90 = 1.6448536  # the central 90 % of a Gaussian is the mean ± this many standard deviations
_Draw = Callable[[Look, str, Predictions], str]


def closer(c: Comparison) -> str:
    """One panel per method with predictions, best first, and a selector."""
    shown = [i for i in order(c, primary(c)) if c.methods[i].predictions is not None]
    if not shown:
        return '<p class="muted">No method made predictions.</p>'
    draw = _figures(c, len(shown))
    panels = "".join(_panel(c, index, draw) for index in shown)
    choices = [(str(index), c.methods[index].name) for index in shown]
    return (
        f'<div class="picker">{selector("Method", choices, "closer")}'
        '<button type="button" class="quiet" data-step="-1" aria-label="Previous">←</button>'
        '<button type="button" class="quiet" data-step="1" aria-label="Next">→</button></div>'
        f'<div id="closer">{panels}</div>'
    )


def _panel(c: Comparison, index: int, draw: _Draw) -> str:
    method, style = c.methods[index], look(index)
    parts = facts([(k, v) for k, v in method.parts.items() if v], "facts small")
    figures = draw(style, method.name, method.predictions) if method.predictions else ""
    return (
        f'<div class="panel" data-panel="{index}" id="method-{index}">'
        f'<h3 class="who">{swatch(style)}{escape(method.name)}</h3>{parts}'
        f'<div class="grid">{figures}</div></div>'
    )


def _figures(c: Comparison, methods: int) -> _Draw:
    """A function that draws all figures of a method, on axes that the methods share."""
    predictions = [m.predictions for m in c.methods if m.predictions]
    span = _target_range([p for p in predictions if isinstance(p, RegressionPredictions)])
    clouds = [_uncertainty(p) for p in predictions]
    unit = "standard deviation" if c.task == "regression" else "uncertainty"
    x = Axis(f"aleatoric {unit}", *_shared([aleatoric for _, aleatoric, _ in clouds]))
    y = Axis(f"epistemic {unit}", *_shared([epistemic for epistemic, _, _ in clouds]))

    def draw(look: Look, name: str, p: Predictions) -> str:
        cloud = _scatter((x, y), look, name, p, methods)
        if isinstance(p, RegressionPredictions):
            return _intervals(span, look, name, p, methods) + cloud
        first = _reliability(look, name, p) + _histogram(look, name, p)
        return first + _confusion(look, name, p, methods) + cloud

    return draw


def _target_range(predictions: Sequence[RegressionPredictions]) -> tuple[float, float]:
    """The range of the target, the same for every method."""
    low, high = limits(*(p.y for p in predictions), pad=0.08)
    drawn = [p for p in predictions if len(finite(p.lower, p.upper))]
    spans = [limits(p.lower, p.upper, tail=0.02) for p in drawn]
    if not spans:
        return low, high
    lows, highs = np.transpose(spans)
    # The frame fits the typical method; one with huge intervals must not flatten the others.
    room = 0.25 * (high - low)
    bottom, top = max(lows.min(), np.median(lows) - room), min(highs.max(), np.median(highs) + room)
    return min(low, float(bottom)), max(high, float(top))


def _intervals(
    span: tuple[float, float], look: Look, name: str, p: RegressionPredictions, methods: int
) -> str:
    """Test rows in the order of their predicted mean, with 90 % intervals and truth."""
    kept = subsample(len(p.y), share(3000, methods, 150))
    # NaN means go last, where nothing is drawn.
    rows = kept[np.argsort(p.mean[kept], kind="stable")]
    x = Axis("test rows, by predicted mean", -1, max(len(rows), 1), at=[])
    plot = Plot(x, Axis("target", *span), f"Prediction intervals of {name}", height=380)
    plot.bottom = 28  # rows have no ticks
    _interval_marks(plot, look, p, rows)
    key = (
        f'<span><i class="tone {look.colour}"></i> 90 % interval</span>'
        f'<span><i class="tone deep {look.colour}"></i> epistemic part</span>'
        '<span><i class="dot ink"></i> truth</span><span><b>×</b> truth outside</span>'
    )
    some = f"{len(rows)} of {count(len(p.y), 'test row')} of the first split"
    caption = f"About one truth in ten should be a cross. Shown: {some}."
    return figure("Prediction intervals", plot.render(), caption, key=key)


def _interval_marks(plot: Plot, look: Look, p: RegressionPredictions, rows: np.ndarray) -> None:
    """Draws interval, epistemic part, mean and truth of each row, from left to right."""
    place = np.arange(len(rows))
    step = plot.inner[0] / max(len(rows), 1)
    wide = float(np.clip(0.8 * step, 0.8, 12))
    reach = _Z90 * p.epistemic_std[rows]
    mean, y, lower, upper = p.mean[rows], p.y[rows], p.lower[rows], p.upper[rows]
    with plot.group(look):
        plot.strokes(place, lower, upper, kind="interval", wide=wide)
        plot.strokes(place, mean - reach, mean + reach, kind="interval inner", wide=wide)
    tips = [
        f"row {r + 1}: truth {t:.4g}, mean {m:.4g}, 90 % from {a:.4g} to {b:.4g}"
        for r, t, m, a, b in zip(rows, y, mean, lower, upper, strict=True)
    ]
    inside = (y >= lower) & (y <= upper)
    hit, miss = np.flatnonzero(inside), np.flatnonzero(~inside)
    plot.line(place, mean, kind="mean")
    plot.points(hit, y[hit], [tips[i] for i in hit], kind="truth", radius=2.2)
    crosses = [tips[i] for i in miss]
    plot.points(miss, y[miss], crosses, shape="cross", kind="cross")


def _uncertainty(predictions: Predictions) -> tuple[Floats, Floats, np.ndarray]:
    """Epistemic and aleatoric uncertainty of each row and whether it was missed; all (n,).

    A miss is a true value outside the 90 % interval, or a wrong most probable class.
    """
    if isinstance(predictions, RegressionPredictions):
        outside = (predictions.y < predictions.lower) | (predictions.y > predictions.upper)
        return predictions.epistemic_std, predictions.aleatoric_std, outside
    wrong = predictions.probabilities.argmax(axis=1) != predictions.y
    return predictions.epistemic, predictions.aleatoric, wrong


def _shared(columns: Sequence[Floats]) -> tuple[float, float]:
    """Limits from zero that all methods share, so that their clouds can be compared."""
    # One method with a huge uncertainty must not flatten the others.
    tops = [_top(finite(c)) for c in columns if len(finite(c))]
    top = min(max(tops), 2.5 * float(np.median(tops))) if tops else 1.0
    high = top if top > 0 else max([*tops, 0.0])
    return (-0.03 * high, 1.05 * high) if high > 0 else limits([0.0, 1.0])


def _top(values: Floats) -> float:
    """The largest value, unless a hundredth of the rows lies far beyond the others."""
    most, usual = float(values.max()), float(np.quantile(values, 0.99))
    return most if most < 1.5 * usual else usual


def _scatter(axes: tuple[Axis, Axis], look: Look, name: str, p: Predictions, methods: int) -> str:
    """One method's test rows, with misses as crosses."""
    epistemic, aleatoric, missed = _uncertainty(p)
    x, y = axes
    lost = int(np.sum(~((epistemic <= y.high) & (aleatoric <= x.high))))  # NaN counts as well
    keep = subsample(len(missed), share(3000, methods, 400))
    epistemic, aleatoric, missed = epistemic[keep], aleatoric[keep], missed[keep]
    plot = Plot(x, y, f"Epistemic against aleatoric uncertainty of {name}", height=380)
    tips = [
        f"row {row + 1}: epistemic {e:.3g}, aleatoric {a:.3g}{', missed' if m else ''}"
        for row, e, a, m in zip(keep, epistemic, aleatoric, missed, strict=True)
    ]
    hit, miss = np.flatnonzero(~missed), np.flatnonzero(missed)
    with plot.group(look):
        plot.points(aleatoric[hit], epistemic[hit], [tips[i] for i in hit], kind="cloud")
    crosses = [tips[i] for i in miss]
    plot.points(aleatoric[miss], epistemic[miss], crosses, shape="cross", kind="cross")
    beyond = f" {count(lost, 'row')} of {len(p.y):,} beyond the frame." if lost else ""
    meant = "outside the 90 % interval" if isinstance(p, RegressionPredictions) else "wrong class"
    key = (
        f'<span><i class="dot {look.colour}"></i> test row</span>'
        f"<span><b>×</b> missed ({meant})</span>"
    )
    caption = (
        "Rows high up are unlike the training data: more data would help. Rows far to the right "
        f"are noisy: more data would not help. The axes are the same for every method.{beyond}"
    )
    return figure("Two kinds of uncertainty", plot.render(), caption, key=key)


def _reliability(look: Look, name: str, p: ClassificationPredictions) -> str:
    """Each confidence bin as a disc, its area the number of rows, tied to the diagonal."""
    unit = (-0.06, 1.08)
    plot = Plot(Axis("confidence", *unit), Axis("accuracy", *unit), f"Reliability of {name}")
    confidence, accuracy, rows, tips = bins_drawn(p)
    plot.line([0, 1], [0, 1], kind="ideal", title="perfect calibration")
    sizes = 2.5 + 8 * np.sqrt(rows / rows.max(initial=1))
    with plot.group(look):
        plot.strokes(confidence, confidence, accuracy, kind="gap", wide=3)
        plot.points(confidence, accuracy, tips, radius=sizes)
    key = "<span>Larger discs hold more rows</span>"
    caption = "Discs below the dashed line: overconfident. Small discs vary by chance."
    return figure("Reliability", plot.render(), caption, key=key)


def bins_drawn(p: ClassificationPredictions) -> tuple[Floats, Floats, Floats, list[str]]:
    """Confidence, accuracy, rows and tooltip of at most 40 bins that are not empty."""
    bins = p.calibration
    filled = np.flatnonzero(bins.rows > 0)
    drawn = filled[subsample(len(filled), 40)]
    columns = bins.promised[drawn], bins.observed[drawn], bins.rows[drawn]
    tips = [
        f"confidence {c:.1%}, accuracy {a:.1%}, {count(int(n), 'row')}"
        for c, a, n in zip(*columns, strict=True)
    ]
    return *columns, tips


def _histogram(look: Look, name: str, p: ClassificationPredictions) -> str:
    """The confidence of right and of wrong answers."""
    top = p.probabilities.max(axis=1, initial=0.0)
    right = p.probabilities.argmax(axis=1) == p.y
    edges = np.linspace(0, 1, 21)
    good, _ = np.histogram(top[right & np.isfinite(top)], edges)
    bad, _ = np.histogram(top[~right & np.isfinite(top)], edges)
    most = max(int((good + bad).max()), 1)
    y = Axis("test rows", 0, 1.05 * most)
    plot = Plot(Axis("confidence", 0, 1), y, f"Confidence of {name}, right and wrong answers")
    with plot.group(look):
        for a, b, n, m in zip(edges[:-1], edges[1:], good, bad, strict=True):
            span, bin_name = (float(a) + 0.004, float(b) - 0.004), f"confidence {a:.0%} to {b:.0%}"
            if n:
                plot.box(span, (0, int(n)), title=f"{bin_name}: {n} right")
            if m:
                wrong = f"{bin_name}: {m} wrong"
                plot.box(span, (int(n), int(n + m)), kind="bar wrong", title=wrong)
    key = (
        f'<span><i class="tone full {look.colour}"></i> right</span>'
        '<span><i class="tone ink"></i> wrong</span>'
    )
    caption = "A good method is less confident where it is wrong: wrong answers lie to the left."
    return figure("Confidence", plot.render(), caption, key=key)


def _counts(p: ClassificationPredictions, most: int) -> tuple[Floats, list[str]]:
    """Rows by (true, predicted) class; beyond `most` classes the rarest are joined."""
    size = len(p.classes)
    table = np.zeros((size, size))
    np.add.at(table, (p.y, p.probabilities.argmax(axis=1)), 1)
    if size <= most:
        return table, list(p.classes)
    frequent = np.sort(np.argsort(-table.sum(axis=1), kind="stable")[: most - 1])
    group = np.full(size, most - 1)
    group[frequent] = np.arange(most - 1)
    joined = np.zeros((most, most))
    np.add.at(joined, (group[:, None], group[None, :]), table)
    return joined, [*(p.classes[i] for i in frequent), f"{size - most + 1} others"]


def _confusion(look: Look, name: str, p: ClassificationPredictions, methods: int) -> str:
    """True against predicted class; colour is the share of the true class."""
    most = max(8, min(20, math.isqrt(share(3600, methods, 400))))
    table, names = _counts(p, most)
    size = len(names)
    short, at = [shorten(n, 11) for n in names], list(range(size))
    x = Axis("predicted", -0.5, size - 0.5, at=at, names=short)
    y = Axis("true", size - 0.5, -0.5, at=at, names=short)
    plot = Plot(x, y, f"Confusion matrix of {name}, {size} classes", height=400)
    plot.grid, plot.dense = False, size > 12
    slant = size > 5 or max(map(len, short)) > 6
    plot.bottom = 88 if slant else plot.bottom
    filled = [(i, j, table[i, j], table[i, j] / table[i].sum()) for i, j in np.argwhere(table > 0)]
    with plot.group(look):
        for i, j, n, part in filled:
            tip = f"{names[i]} predicted as {names[j]}: {n:.0f} ({part:.0%})"
            cell = (j - 0.48, j + 0.48), (i - 0.48, i + 0.48)
            plot.box(*cell, title=tip, opacity=0.1 + 0.9 * part)
    if size <= 10:
        for i, j, n, part in filled:
            plot.text(j, i, f"{n:.0f}", kind="cell strong" if part > 0.5 else "cell")
    shown = f" The {size - 1} most frequent of {len(p.classes)} classes."
    shown = shown if most < len(p.classes) else ""
    caption = f"Each row is a true class; the diagonal is right. Colour: share of the row.{shown}"
    return figure("Confusion", plot.render(slant=slant), caption)
