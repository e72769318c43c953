"""Curves and heat maps as svg files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from bayesrule.app.report.axes import Axis, finite, limits
from bayesrule.app.report.contents import Floats
from bayesrule.app.report.svg import Plot, escape, look, number
from benchmarks.pictures.heat import bar, cells

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.point { fill: currentColor; stroke: none; }
.c0 { color: #0072b2; } .c1 { color: #d55e00; } .c2 { color: #009e73; } .c3 { color: #b5508c; }
.c4 { color: #bd8200; } .c5 { color: #3b9bd6; } .c6 { color: #5f5aa6; } .c7 { color: #7d7f1d; }
"""
WIDTH, HEIGHT, SIDE, TOP = 430.0, 290.0, 140.0, 30.0
# About the width of a letter.
LETTER = 7.2
FEW = 12
# So that overlapping lines remain visible.
DASHES = ("", "9 4", "3 3", "9 3 2 3")


@dataclass(frozen=True)
class Line:
    """A curve; lines of one name look alike and appear in the legend once."""

    name: str
    xs: ArrayLike
    ys: ArrayLike


@dataclass(frozen=True)
class Panel:
    """A pair of axes with its curves, and the width of its legend."""

    drawn: str
    side: float


def panel(
    title: str,
    lines: Sequence[Line],
    x: str,
    y: str,
    *,
    log: bool = False,
    doublings: Sequence[float] = (),
    among: Sequence[str] = (),
) -> Panel:
    """Curves over one pair of axes, with a legend; few points get marks.

    With `log` the vertical axis is logarithmic if the numbers differ enough for that. Given
    `doublings`, the horizontal axis is logarithmic and has ticks there. `among` names all lines of
    a sheet, including those not drawn here, so that each looks the same in all panels.
    """
    names = list(dict.fromkeys(line.name for line in lines))
    places = {name: k for k, name in enumerate(dict.fromkeys([*among, *names]))}
    log = log and _far_apart(lines)
    across = Axis(x, *_horizontal(lines))
    if doublings:
        across = Axis(x, min(doublings) / 1.2, max(doublings) * 1.2, log=True, at=doublings)
    axes = across, Axis(y, *_vertical(lines, log), log=log)
    plot = Plot(*axes, title, width=WIDTH, height=HEIGHT)
    for line in lines:
        place = places[line.name]
        one = look(place)
        with plot.group(one):
            plot.line(line.xs, line.ys, dash=DASHES[place % len(DASHES)], title=line.name)
            if np.size(line.xs) <= FEW:
                plot.points(line.xs, line.ys, shape=one.shape)
    head = f'<text class="title" x="12" y="18">{escape(title)}</text>'
    drawn = f'<svg y="{TOP}" width="{WIDTH}" height="{HEIGHT}">{plot.render()}</svg>'
    longest = max((len(name) for name in names), default=0)
    return Panel(
        head + drawn + _legend({name: places[name] for name in names}),
        max(SIDE, 46.0 + LETTER * longest),
    )


def _legend(places: Mapping[str, int]) -> str:
    found = []
    for row, (name, place) in enumerate(places.items()):
        one, y = look(place), number(TOP + 40 + 22 * row)
        x, dash = number(WIDTH + 6), f'stroke-dasharray="{DASHES[place % len(DASHES)]}"'
        found.append(f'<g class="{one.colour}"><path class="line" d="M{x} {y}h24" {dash}/></g>')
        found.append(f'<text x="{number(WIDTH + 36)}" y="{y}" dy=".34em">{escape(name)}</text>')
    return "".join(found)


def _horizontal(lines: Sequence[Line]) -> tuple[float, float]:
    return limits(*(line.xs for line in lines), pad=0.03)


def _vertical(lines: Sequence[Line], log: bool) -> tuple[float, float]:
    if not log:
        # The first epochs of a bound are far off; show the rest.
        long = max(np.size(line.ys) for line in lines) > FEW
        return limits(*(line.ys for line in lines), tail=0.12 if long else 0.0)
    low, high = _ends(lines)
    return low / 1.4, high * 1.4


def _far_apart(lines: Sequence[Line]) -> bool:
    """Whether all numbers are positive and the largest is several times the smallest."""
    low, high = _ends(lines)
    return low > 0 and high > 3 * low


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    numbers = finite(*(line.ys for line in lines))
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)


def sheet(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """Panels side by side in one svg document."""
    wide = WIDTH + max(one.side for one in panels)
    tall, rows = HEIGHT + TOP, -(-len(panels) // columns)
    placed = [
        f'<svg x="{number(wide * (k % columns))}" y="{number(tall * (k // columns))}" '
        f'width="{wide}" height="{tall}">{one.drawn}</svg>'
        for k, one in enumerate(panels)
    ]
    return document("".join(placed), wide * min(columns, len(panels)), tall * rows)


def document(body: str, width: float, height: float) -> str:
    """An svg file of its own, on white."""
    size = f'width="{number(width)}" height="{number(height)}"'
    box = f'viewBox="0 0 {number(width)} {number(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def heat_maps(matrices: Mapping[str, ArrayLike], title: str, *, side: float = 220.0) -> str:
    """Matrices side by side on one colour scale, the first one's, with the scale beside them."""
    values = {name: np.asarray(matrix, dtype=np.float64) for name, matrix in matrices.items()}
    low, high = _scale(next(iter(values.values())))
    parts, gap, x = [f'<text class="title" x="12" y="20">{escape(title)}</text>'], 16.0, 12.0
    for name, matrix in values.items():
        parts.append(f'<text x="{number(x)}" y="44">{escape(name)}</text>')
        parts.append(cells(matrix, low, high, (x, 54.0, side, side)))
        x += side + gap
    parts.append(bar(low, high, (x, 54.0, 16.0, side)))
    return document("".join(parts), x + 90.0, side + 70.0)


def _scale(matrix: Floats) -> tuple[float, float]:
    """The ends of the colour scale: the first and the last percentile."""
    low, high = (float(q) for q in np.quantile(matrix, (0.01, 0.99)))
    return (low, high) if high > low else (low, low + max(abs(low), 1.0))


def write(folder: Path, name: str, pictures: Mapping[str, str]) -> list[Path]:
    """Writes the pictures of a task, each under the task's name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}-{file}" for file in pictures]
    for file, drawn in zip(files, pictures.values(), strict=True):
        file.write_text(drawn, encoding="utf-8")
    return files
