"""Heat maps as a few paths: a matrix in steps of colour, and the scale beside it."""

from __future__ import annotations

import itertools

import numpy as np

from bayesrule.app.report.axes import Axis
from bayesrule.app.report.contents import Floats
from bayesrule.app.report.svg import escape, number

# Perceptually uniform from dark to light, and readable without colour vision.
_ANCHORS = np.array(
    [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], dtype=np.float64
)
LEVELS = 24
Box = tuple[float, float, float, float]
"""Left, top, width and height."""


def colour(level: int, levels: int = LEVELS) -> str:
    """The colour of a level.

    >>> colour(0), colour(LEVELS - 1)
    ('#440154', '#fde725')
    """
    place = level / (levels - 1) * (len(_ANCHORS) - 1)
    below = min(int(place), len(_ANCHORS) - 2)
    mixed = _ANCHORS[below] + (place - below) * (_ANCHORS[below + 1] - _ANCHORS[below])
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def steps(matrix: Floats, low: float, high: float) -> np.ndarray:
    """The colour level of each entry, clamped to the scale."""
    share = (matrix - low) / (high - low)
    return np.clip((share * LEVELS).astype(int), 0, LEVELS - 1)


def cells(matrix: Floats, low: float, high: float, box: Box) -> str:
    """A matrix (m, n) that fills a box; neighbours of one colour in a row become one cell."""
    levels, (rows, columns) = steps(matrix, low, high), matrix.shape
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        start = 0
        for level, run in itertools.groupby(line.tolist()):
            length = len(list(run))
            paths.setdefault(level, []).append(f"M{start} {row}h{length}v1h-{length}z")
            start += length
    x, y, width, height = (number(value) for value in box)
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    body = "".join(f'<path fill="{colour(k)}" d="{"".join(d)}"/>' for k, d in sorted(paths.items()))
    return (
        f'<svg {place} viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges">{body}</svg>'
    )


def bar(low: float, high: float, box: Box) -> str:
    """The scale: a column of all colours, the largest on top, and its numbers to the right."""
    x, y, width, height = box
    middles = np.linspace(high, low, 2 * LEVELS + 1)[1::2, None]
    axis = Axis("", low, high)
    ticks = [
        f'<text x="{number(x + width + 8)}" '
        f'y="{number(y + height * (1 - float(axis.place([value])[0])))}" '
        f'dy=".34em">{escape(name)}</text>'
        for value, name in axis.marks()
    ]
    return cells(middles, low, high, box) + "".join(ticks)
