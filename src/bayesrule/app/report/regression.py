"""A closer look at one regression method: prediction intervals."""

from __future__ import annotations

import numpy as np

from .axes import Axis, finite, limits
from .contents import Comparison, RegressionPredictions
from .markup import count, figure, share, subsample
from .palette import Look
from .svg import Plot

_Z90 = 1.6448536  # the central 90 % of a Gaussian is the mean ± this many standard deviations


def frame(comparison: Comparison) -> tuple[float, float]:
    """The range of the target, the same for every method."""
    drawn = [m.predictions for m in comparison.methods if m.predictions]
    real = [p for p in drawn if isinstance(p, RegressionPredictions)]
    low, high = limits(*(p.y for p in real), pad=0.08)
    spans = [limits(p.lower, p.upper, tail=0.02) for p in real if len(finite(p.lower, p.upper))]
    if not spans:
        return low, high
    lows, highs = np.transpose(spans)
    # The typical method fits into the frame; one with huge intervals must not flatten the others.
    room = 0.25 * (high - low)
    bottom, top = max(lows.min(), np.median(lows) - room), min(highs.max(), np.median(highs) + room)
    return min(low, float(bottom)), max(high, float(top))


def _marks(plot: Plot, look: Look, p: RegressionPredictions, rows: np.ndarray) -> None:
    """Total interval, the epistemic part of it, the mean and the truth, left to right."""
    place = np.arange(len(rows))
    step = plot.inner[0] / max(len(rows), 1)
    wide = float(np.clip(0.8 * step, 0.8, 12))
    reach = _Z90 * p.epistemic_std[rows]
    mean, y, lower, upper = p.mean[rows], p.y[rows], p.lower[rows], p.upper[rows]
    plot.begin(look)
    plot.strokes(place, lower, upper, kind="interval", wide=wide)
    plot.strokes(place, mean - reach, mean + reach, kind="interval inner", wide=wide)
    plot.end()
    tips = [
        f"row {r + 1}: truth {t:.4g}, mean {m:.4g}, 90 % from {a:.4g} to {b:.4g}"
        for r, t, m, a, b in zip(rows, y, mean, lower, upper, strict=True)
    ]
    inside = (y >= lower) & (y <= upper)
    hit, miss = np.flatnonzero(inside), np.flatnonzero(~inside)
    plot.line(place, mean, kind="mean")
    plot.points(hit, y[hit], [tips[i] for i in hit], kind="truth", radius=2.2)
    plot.crosses(miss, y[miss], [tips[i] for i in miss])


def intervals(
    span: tuple[float, float], look: Look, name: str, p: RegressionPredictions, methods: int
) -> str:
    """Test rows in the order of their predicted mean, with 90 % intervals and truth."""
    kept = subsample(len(p.y), share(3000, methods, 150))
    # NaN means go last, where nothing is drawn.
    rows = kept[np.argsort(p.mean[kept], kind="stable")]
    x = Axis("test rows, by predicted mean", -1, max(len(rows), 1), at=[])
    plot = Plot(x, Axis("target", *span), f"Prediction intervals of {name}", height=380)
    plot.bottom = 28  # rows have no ticks
    _marks(plot, look, p, rows)
    key = (
        f'<span><i class="tone {look.colour}"></i> 90 % interval</span>'
        f'<span><i class="tone deep {look.colour}"></i> epistemic part</span>'
        '<span><i class="dot ink"></i> truth</span><span><b>×</b> truth outside</span>'
    )
    some = f"{len(rows)} of {count(len(p.y), 'test row')} of the first split"
    caption = f"About one truth in ten should be a cross. Shown: {some}."
    return figure("Prediction intervals", plot.render(), caption, key=key)
