"""An expensive function, minimised by a network that learns it meanwhile, as a picture.

    python examples/optimise.py [FILE.svg]

Himmelblau's function has four places of the least value, 0, and hills of several hundred. After ten
random points a network learns the answers so far by TAGI and, by inference of its inputs, proposes
where to ask next. Left: where it asked (dark: low values; the later, the redder the point). Right:
the best value so far, beside that of random search.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.grid { stroke: #e6e6e6; fill: none; } .notch, .base { stroke: #999; fill: none; }
.tick.y { text-anchor: end; } .tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.ground { fill: #14507d; } .first { fill: #888; } .early { fill: #f2b134; } .late { fill: #d1301f; }
.best { fill: none; stroke: #d1301f; stroke-width: 2; } .random { fill: none; stroke: #bbb; }
"""
SIZE, CELLS = 400.0, 50
BOUNDS = [(-5.0, 5.0), (-5.0, 5.0)]


def himmelblau(x: Tensor) -> float:
    """The black box."""
    a, b = x.tolist()
    return (a**2 + b - 11) ** 2 + (a + b**2 - 7) ** 2


def ground(plot: Plot) -> None:
    """The function as shades of blue."""
    step = 10.0 / CELLS

    def shade(i: int, j: int) -> float:
        value = himmelblau(torch.tensor([(i + 0.5) * step - 5.0, (j + 0.5) * step - 5.0]))
        return round(max(0.0, 1.0 - math.log1p(value) / math.log1p(400.0)), 1)

    for i in range(CELLS):
        # Neighbouring cells of one shade become one box.
        for level, cells in groupby(range(CELLS), partial(shade, i)):
            low, *_, high = [j for cell in cells for j in (cell, cell + 1)]
            ends = low * step - 5.0, high * step - 5.0
            column = i * step - 5.0, (i + 1) * step - 5.0
            plot.box(column, ends, kind="ground", opacity=0.05 + 0.85 * level)


def asked(search: br.explore.Search, first: int) -> Plot:
    """Where the function was evaluated."""
    plot = Plot(Axis("x₁", -5.0, 5.0), Axis("x₂", -5.0, 5.0), "points", width=SIZE, height=SIZE)
    plot.grid = False
    ground(plot)
    tips = [f"{i + 1}: {v:.3g}" for i, v in enumerate(search.values.tolist())]
    middle = (first + len(tips)) // 2
    for kind, at in (
        ("first", slice(0, first)),
        ("early", slice(first, middle)),
        ("late", slice(middle, None)),
    ):
        x, y = search.points[at].T.numpy()
        plot.points(x, y, tips[at], kind=kind, radius=3.4)
    return plot


def progress(search: br.explore.Search, random: list[Tensor]) -> Plot:
    """The best value after each evaluation, on a logarithmic scale."""
    num = len(search.values)
    x, y = Axis("evaluations", 0.0, num), Axis("log₁₀ of the best value so far", -4.0, 3.0)
    plot = Plot(x, y, "best value", width=SIZE, height=SIZE)
    steps = torch.arange(1, num + 1).numpy()
    for best in random:
        plot.line(steps, best.clamp_min(1e-4).log10().numpy(), kind="random")
    plot.line(steps, search.best.clamp_min(1e-4).log10().numpy(), kind="best")
    plot.text(num * 0.35, 2.6, "grey: random search, ten times")
    return plot


def random_search(num: int, seed: int) -> Tensor:
    """The best value after each of `num` uniformly random points."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.empty(num, 2).uniform_(-5.0, 5.0, generator=generator)
    return torch.tensor([himmelblau(x) for x in points]).cummin(0).values


def picture(evaluations: int = 50, first: int = 10) -> str:
    """Both panels."""
    search = br.explore.minimise(himmelblau, BOUNDS, evaluations=evaluations, first=first)
    random = [random_search(evaluations, seed) for seed in range(10)]
    panels = "".join(
        f'<svg x="{SIZE * i}" y="0" width="{SIZE}" height="{SIZE}">{plot.render()}</svg>'
        for i, plot in enumerate((asked(search, first), progress(search, random)))
    )
    size = f'width="{2 * SIZE}" height="{SIZE}" viewBox="0 0 {2 * SIZE} {SIZE}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{panels}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
