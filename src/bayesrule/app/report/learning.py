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
    found = [
        (index, split, curve)
        for index, method in enumerate(comparison.methods)
        for split, curve in enumerate(method.curves)
        if len(finite(getattr(curve, quantity)))
    ]
    return found if len(found) <= 60 else [item for item in found if item[1] == 0]


def _picture(comparison: Comparison, quantity: _Quantity, label: str) -> str:
    found = _curves(comparison, quantity)
    if not found:
        return ""
    values = [getattr(curve, quantity) for _, _, curve in found]
    y = _axis(label, values, may_log=quantity == "train_loss")
    x = Axis("epoch", *limits(*(curve.epochs for _, _, curve in found), pad=0.02))
    methods = len({index for index, _, _ in found})
    plot = Plot(x, y, f"{label} by epoch of {methods} methods")
    points = share(8000, len(found), 200)
    # First splits come last, on top of the faint others.
    for index, split, curve in sorted(found, key=lambda item: -item[1]):
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
    told = ""
    if any(split > 0 for _, split, _ in _curves(comparison, "train_loss")):
        told = "Strong line: first split; faint lines: the other splits. "
    figures = []
    if loss:
        text = "A loss that still falls at the end asks for more epochs."
        figures.append(figure("Training loss", loss, told + text))
    if score:
        text = "Measured on rows kept out of the training."
        figures.append(figure("Validation", score, told + text))
    if not figures:
        return '<p class="muted">No method recorded a learning curve.</p>'
    return f'<div class="grid">{"".join(figures)}</div>'
