"""A closer look at one classifier: reliability, confidence and confusion."""

from __future__ import annotations

import math

import numpy as np

from .axes import Axis
from .contents import ClassificationPredictions, Floats
from .markup import count, figure, share, subsample
from .palette import Look
from .svg import Plot, shorten


def reliability(look: Look, name: str, p: ClassificationPredictions) -> str:
    """Each confidence bin as a disc, its area the number of rows, tied to the diagonal."""
    unit = (-0.06, 1.08)
    plot = Plot(Axis("confidence", *unit), Axis("accuracy", *unit), f"Reliability of {name}")
    confidence, accuracy, rows, tips = bins_drawn(p)
    plot.line([0, 1], [0, 1], kind="ideal", title="perfect calibration")
    plot.begin(look)
    plot.strokes(confidence, confidence, accuracy, kind="gap", wide=3)
    sizes = 2.5 + 8 * np.sqrt(rows / rows.max(initial=1))
    plot.points(confidence, accuracy, tips, radius=sizes)
    plot.end()
    key = "<span>Larger discs hold more rows</span>"
    caption = "Discs below the dashed line: overconfident. Small discs vary by chance."
    return figure("Reliability", plot.render(), caption, key=key)


def bins_drawn(p: ClassificationPredictions) -> tuple[Floats, Floats, Floats, list[str]]:
    """Confidence, accuracy, rows and tooltip of at most 40 bins that are not empty."""
    filled = np.flatnonzero(p.calibration.count > 0)
    drawn = filled[subsample(len(filled), 40)]
    bins = p.calibration
    columns = bins.confidence[drawn], bins.accuracy[drawn], bins.count[drawn]
    tips = [
        f"confidence {c:.1%}, accuracy {a:.1%}, {count(int(n), 'row')}"
        for c, a, n in zip(*columns, strict=True)
    ]
    return *columns, tips


def histogram(look: Look, name: str, p: ClassificationPredictions) -> str:
    """The confidence of right and of wrong answers."""
    top = p.probabilities.max(axis=1) if len(p.y) else np.empty(0)
    right = p.probabilities.argmax(axis=1) == p.y if len(p.y) else np.empty(0, dtype=bool)
    edges = np.linspace(0, 1, 21)
    good, _ = np.histogram(top[right & np.isfinite(top)], edges)
    bad, _ = np.histogram(top[~right & np.isfinite(top)], edges)
    most = max(int((good + bad).max()), 1)
    y = Axis("test rows", 0, 1.05 * most)
    plot = Plot(Axis("confidence", 0, 1), y, f"Confidence of {name}, right and wrong answers")
    plot.begin(look)
    for a, b, n, m in zip(edges[:-1], edges[1:], good, bad, strict=True):
        span, bin_name = (float(a) + 0.004, float(b) - 0.004), f"confidence {a:.0%} to {b:.0%}"
        if n:
            plot.box(span, (0, int(n)), title=f"{bin_name}: {n} right")
        if m:
            plot.box(span, (int(n), int(n + m)), kind="bar wrong", title=f"{bin_name}: {m} wrong")
    plot.end()
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
    if len(p.y):
        np.add.at(table, (p.y, p.probabilities.argmax(axis=1)), 1)
    if size <= most:
        return table, list(p.classes)
    frequent = np.argsort(-table.sum(axis=1), kind="stable")[: most - 1]
    group = np.full(size, most - 1)
    group[np.sort(frequent)] = np.arange(most - 1)
    joined = np.zeros((most, most))
    np.add.at(joined, (group[:, None], group[None, :]), table)
    names = [p.classes[i] for i in np.sort(frequent)]
    return joined, [*names, f"{size - most + 1} others"]


def confusion(look: Look, name: str, p: ClassificationPredictions, methods: int) -> str:
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
    plot.begin(look)
    for i, j in np.argwhere(table > 0):
        part = table[i, j] / table[i].sum()
        tip = f"{names[i]} predicted as {names[j]}: {table[i, j]:.0f} ({part:.0%})"
        plot.box((j - 0.48, j + 0.48), (i - 0.48, i + 0.48), title=tip, opacity=0.1 + 0.9 * part)
    plot.end()
    if size <= 10:
        for i, j in np.argwhere(table > 0):
            strong = table[i, j] > 0.5 * table[i].sum()
            plot.text(j, i, f"{table[i, j]:.0f}", kind="cell strong" if strong else "cell")
    rest = (
        f" The {size - 1} most frequent of {len(p.classes)} classes."
        if most < len(p.classes)
        else ""
    )
    caption = f"Each row is a true class; the diagonal is right. Colour: share of the row.{rest}"
    return figure("Confusion", plot.render(slant=slant), caption)
