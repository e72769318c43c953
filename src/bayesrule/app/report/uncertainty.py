"""Epistemic against aleatoric uncertainty, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .axes import Axis, finite, limits
from .contents import Comparison, Floats, Predictions, RegressionPredictions
from .markup import count, figure, share, subsample
from .palette import Look
from .svg import Plot


def parts(predictions: Predictions) -> tuple[Floats, Floats, np.ndarray]:
    """Epistemic and aleatoric uncertainty and whether each row was missed; all (n,).

    A miss is a true value outside the 90 % interval, or a wrong most probable class.
    """
    if isinstance(predictions, RegressionPredictions):
        outside = (predictions.y < predictions.lower) | (predictions.y > predictions.upper)
        return predictions.epistemic_std, predictions.aleatoric_std, outside
    wrong = predictions.probabilities.argmax(axis=1) != predictions.y
    return predictions.epistemic, predictions.aleatoric, wrong


def _top(values: Floats) -> float:
    """The largest value, unless a hundredth of the rows lies far beyond the others."""
    most, usual = float(values.max()), float(np.quantile(values, 0.99))
    return most if most < 1.5 * usual else usual


def _shared(columns: Sequence[Floats]) -> tuple[float, float]:
    """Limits from zero that all methods share, so that their clouds can be compared."""
    # One method with a huge uncertainty must not flatten the others.
    tops = [_top(finite(c)) for c in columns if len(finite(c))]
    top = min(max(tops), 2.5 * float(np.median(tops))) if tops else 1.0
    high = top if top > 0 else max([*tops, 0.0])
    return (-0.03 * high, 1.05 * high) if high > 0 else limits([0.0, 1.0])


def frame(comparison: Comparison) -> tuple[Axis, Axis]:
    """The axes of the scatter plot, the same for every method."""
    drawn = [parts(m.predictions) for m in comparison.methods if m.predictions]
    unit = "standard deviation" if comparison.task == "regression" else "uncertainty"
    x = Axis(f"aleatoric {unit}", *_shared([a for _, a, _ in drawn]))
    y = Axis(f"epistemic {unit}", *_shared([e for e, _, _ in drawn]))
    return x, y


def scatter(axes: tuple[Axis, Axis], look: Look, name: str, p: Predictions, methods: int) -> str:
    """One method's test rows, with misses as crosses."""
    epistemic, aleatoric, missed = parts(p)
    x, y = axes
    lost = int(np.sum(~((epistemic <= y.high) & (aleatoric <= x.high))))  # NaN counts as well
    keep = subsample(len(missed), share(3000, methods, 400))
    epistemic, aleatoric, missed = epistemic[keep], aleatoric[keep], missed[keep]
    plot = Plot(x, y, f"Epistemic against aleatoric uncertainty of {name}", height=380)
    tips = [
        f"row {row + 1}: epistemic {e:.3g}, aleatoric {a:.3g}{', missed' if m else ''}"
        for row, e, a, m in zip(keep, epistemic, aleatoric, missed, strict=True)
    ]
    plot.begin(look)
    hit = np.flatnonzero(~missed)
    plot.points(aleatoric[hit], epistemic[hit], [tips[i] for i in hit], kind="cloud")
    plot.end()
    miss = np.flatnonzero(missed)
    plot.crosses(aleatoric[miss], epistemic[miss], [tips[i] for i in miss])
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
