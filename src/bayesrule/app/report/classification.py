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
    c, a, n = bins_drawn(p)
    said = [
        f"said {x:.1%}, right {y:.1%}, {count(int(k), 'row')}"
        for x, y, k in zip(c, a, n, strict=True)
    ]
    plot.line([0, 1], [0, 1], kind="ideal", title="perfect calibration")
    plot.begin(look)
    plot.strokes(c, c, a, kind="gap", wide=3)
    plot.points(c, a, said, radius=2.5 + 8 * np.sqrt(n / n.max(initial=1)))
    plot.end()
    key = "<span>Larger discs hold more rows</span>"
    caption = "A disc below the dashed line: more confident than right. Small discs jump about."
    return figure("Reliability", plot.render(), caption, key=key)


def bins_drawn(p: ClassificationPredictions) -> tuple[Floats, Floats, Floats]:
    """Confidence, accuracy and count of at most 40 bins that hold any row."""
    bins = p.calibration
    kept = np.flatnonzero(bins.count > 0)
    kept = kept[subsample(len(kept), 40)]
    return bins.confidence[kept], bins.accuracy[kept], bins.count[kept]


def histogram(look: Look, name: str, p: ClassificationPredictions) -> str:
    """How sure the method was, split into right and wrong answers."""
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
        span, said = (float(a) + 0.004, float(b) - 0.004), f"confidence {a:.0%} to {b:.0%}"
        if n:
            plot.box(span, (0, int(n)), title=f"{said}: {n} right")
        if m:
            plot.box(span, (int(n), int(n + m)), kind="bar wrong", title=f"{said}: {m} wrong")
    plot.end()
    key = (
        f'<span><i class="tone full {look.colour}"></i> right</span>'
        '<span><i class="tone ink"></i> wrong</span>'
    )
    caption = "Good uncertainty puts the wrong answers to the left."
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
        said = f"{names[i]} taken for {names[j]}: {table[i, j]:.0f} ({part:.0%})"
        plot.box((j - 0.48, j + 0.48), (i - 0.48, i + 0.48), title=said, opacity=0.1 + 0.9 * part)
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
    caption = f"Each row is a true class; colour is its share. The diagonal is right.{rest}"
    return figure("Confusion", plot.render(slant=slant), caption)
