"""Calibration of all methods in one picture: nominal against observed frequencies."""

from __future__ import annotations

import numpy as np

from .axes import Axis
from .classification import bins_drawn
from .contents import Comparison, Floats, Predictions, RegressionPredictions
from .markup import figure, subsample
from .palette import Look, look
from .svg import Plot

_UNIT = (-0.02, 1.02)


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
        curve = predictions.coverage
        keep = subsample(len(curve.nominal), 40)
        x, y = curve.nominal[keep], curve.observed[keep]
        tips = [f"{a:.0%} interval holds {b:.1%}" for a, b in zip(x, y, strict=True)]
        return x, y, tips, np.full(len(x), 2.8)
    x, y, n, tips = bins_drawn(predictions)
    return x, y, tips, 1.5 + 3.5 * np.sqrt(n / n.max(initial=1))


def _draw(plot: Plot, style: Look, name: str, predictions: Predictions) -> None:
    x, y, tips, sizes = _curve(predictions)
    plot.begin(style)
    plot.line(x, y, dash=style.dash, title=name)
    plot.points(x, y, [f"{name}: {tip}" for tip in tips], shape=style.shape, radius=sizes)
    plot.end()


def calibration(comparison: Comparison) -> str:
    """The coverage plot (regression) or the reliability diagram (classification)."""
    drawn = [(i, m, m.predictions) for i, m in enumerate(comparison.methods) if m.predictions]
    rows = len(drawn[0][2].y) if drawn else 0
    diagonal = "Dashed line: perfect calibration."
    if comparison.task == "regression":
        title, x, y = "Coverage", "nominal level of the interval", "observed share inside"
        label = f"Observed against nominal coverage of {len(drawn)} methods"
        caption = (
            "Below the line a method is overconfident, above it too cautious. "
            "Grey: where a calibrated method would lie, with this many test rows, in 95 % of cases."
        )
    else:
        title, x, y = "Reliability", "confidence", "accuracy"
        label = f"Accuracy against confidence of {len(drawn)} methods"
        caption = (
            "Below the line a method is overconfident, above it too cautious. "
            "Larger marks hold more rows."
        )
    # The reliability bins hold different numbers of rows, so no single band fits them.
    plot = _ground(x, y, label, rows if comparison.task == "regression" else 0)
    for index, method, predictions in drawn:
        _draw(plot, look(index), method.name, predictions)
    return figure(title, plot.render(), f"{diagonal} {caption} First split.")
