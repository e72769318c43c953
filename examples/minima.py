"""Several minima of a function in one run, as a picture.

    python examples/minima.py [FILE.svg]

Left: Himmelblau's function (dark: low values); right: a density with five arms. A mixture of ten
Gaussians starts as one wide cloud and follows the Bayesian learning rule; the entropy of the
mixture keeps its components apart. Yellow: the means of the Gaussians at the end; red: the minima
that they lead to. Takes a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: none; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.ground { fill: #14507d; } .component { fill: #f2b134; stroke: white; }
.minimum { fill: #d1301f; stroke: white; }
"""
SIZE, HEAD, CELLS, SHADES = 400.0, 26.0, 44, 10


def himmelblau(x: Tensor) -> Tensor:
    """Four minima of value 0."""
    a, b = x.unbind(-1)
    return (a**2 + b - 11.0) ** 2 + (a + b**2 - 7.0) ** 2


def star(x: Tensor) -> Tensor:
    """Minus the log density of five long, narrow Gaussians, turned by 72 degrees each."""
    parts = []
    for angle in (2.0 * math.pi / 5.0 * arm for arm in range(5)):
        along = math.cos(angle) * x[:, 0] + math.sin(angle) * x[:, 1]
        across = math.cos(angle) * x[:, 1] - math.sin(angle) * x[:, 0]
        parts.append(-0.5 * ((along - 1.5) ** 2 + 100.0 * across**2))
    return -torch.stack(parts).logsumexp(0)


def panel(
    title: str, function: Callable[[Tensor], Tensor], minima: br.explore.Minima, edge: float
) -> str:
    """The function in shades, the components' means and the minima."""
    plot = Plot(Axis("x₁", -edge, edge), Axis("x₂", -edge, edge), title, width=SIZE, height=SIZE)
    lines = torch.linspace(-edge, edge, CELLS + 1, dtype=torch.float64)
    middles = (lines[1:] + lines[:-1]) / 2
    for x, column in zip(middles, lines.unfold(0, 2, 1).tolist(), strict=True):
        above = function(torch.stack([x.expand(CELLS), middles], 1)) - minima.values[0]
        shades = (SHADES / (1.0 + above / (2.0 * minima.temperature)).sqrt()).round().tolist()
        # Neighbouring cells of one shade become one box.
        for shade, cells in groupby(range(CELLS), shades.__getitem__):
            low, *_, high = [j for cell in cells for j in (cell, cell + 1)]
            ends = float(lines[low]), float(lines[high])
            plot.box(tuple(column), ends, kind="ground", opacity=0.04 + 0.8 * shade / SHADES)
    for kind, points, radius in (
        ("component", minima.mixture.means, 3.0),
        ("minimum", minima.minima, 4.5),
    ):
        inside = points[(points.abs() < edge).all(1)]
        plot.points(*inside.T.numpy(), kind=kind, radius=radius)
    drawn = f'<svg y="{HEAD}" width="{SIZE}" height="{SIZE}">{plot.render()}</svg>'
    return f'<text class="title" x="40" y="18">{title}</text>{drawn}'


def picture(steps: int = 1000) -> str:
    """Both panels."""
    panels = []
    for number, (name, function, edge, options) in enumerate(
        (("Himmelblau", himmelblau, 5.5, {}), ("star", star, 4.0, {"temperature": 1.0}))
    ):
        minima = br.find_minima(function, dim=2, components=10, steps=steps, **options)
        title = f"{name}: {len(minima)} minima"
        place = f'x="{number * SIZE}" y="0" width="{SIZE}" height="{SIZE + HEAD}"'
        panels.append(f"<svg {place}>{panel(title, function, minima, edge)}</svg>")
    box = f"{2 * SIZE} {SIZE + HEAD}"
    size = f'width="{2 * SIZE}" height="{SIZE + HEAD}" viewBox="0 0 {box}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
