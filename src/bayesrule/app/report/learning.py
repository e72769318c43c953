"""Learning curves: training loss and validation score by epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .axes import Axis, finite, limits
from .contents import Comparison, Curve, Floats
from .markup import figure, share, subsample
from .palette import look
from .svg import Plot

_Quantity = Literal["train_loss", "validation"]


def _axis(label: str, values: list[Floats], *, may_log: bool) -> Axis:
    """A logarithmic axis for positive values over a wide range, else a linear one."""
    numbers = finite(*values)
    if may_log and len(numbers) and numbers.min() > 0 and numbers.max() > 30 * numbers.min():
        return Axis(f"{label} (log scale)", numbers.min() / 1.1, numbers.max() * 1.1, log=True)
    return Axis(label, *limits(numbers, tail=0.03))


def _curves(comparison: Comparison, quantity: _Quantity) -> list[tuple[int, int, Curve]]:
    """(method, split, curve) with anything to draw; all splits only while they stay legible."""
    curves = [
        (index, split, curve)
        for index, method in enumerate(comparison.methods)
        for split, curve in enumerate(method.curves)
        if len(finite(getattr(curve, quantity)))
    ]
    return curves if len(curves) <= 60 else [item for item in curves if item[1] == 0]


def _picture(comparison: Comparison, quantity: _Quantity, label: str) -> str:
    curves = _curves(comparison, quantity)
    if not curves:
        return ""
    values = [getattr(curve, quantity) for _, _, curve in curves]
    y = _axis(label, values, may_log=quantity == "train_loss")
    x = Axis("epoch", *limits(*(curve.epochs for _, _, curve in curves), pad=0.02))
    methods = len({index for index, _, _ in curves})
    plot = Plot(x, y, f"{label} by epoch of {methods} methods")
    points = share(8000, len(curves), 200)
    # First splits come last, on top of the faint others.
    for index, split, curve in sorted(curves, key=lambda item: -item[1]):
        keep = subsample(len(curve.epochs), points)
        style, name = look(index), comparison.methods[index].name
        plot.begin(style)
        plot.line(
            curve.epochs[keep],
            np.asarray(getattr(curve, quantity))[keep],
            kind="line" if split == 0 else "line faint-line",
            dash=style.dash,
            title=f"{name}, split {split + 1}",
        )
        plot.end()
    return plot.render()


def learning(comparison: Comparison) -> str:
    """The two figures side by side, or a sentence where no method learns by epochs."""
    loss = _picture(comparison, "train_loss", "training loss")
    score = _picture(comparison, "validation", comparison.validation_label)
    lines = ""
    if any(split > 0 for _, split, _ in _curves(comparison, "train_loss")):
        lines = "Strong line: first split; faint lines: the other splits. "
    figures = []
    if loss:
        text = "A loss that still falls at the end needs more epochs."
        figures.append(figure("Training loss", loss, lines + text))
    if score:
        text = "Measured on rows kept out of the training."
        figures.append(figure("Validation", score, lines + text))
    if not figures:
        return '<p class="muted">No method recorded a learning curve.</p>'
    return f'<div class="grid">{"".join(figures)}</div>'
