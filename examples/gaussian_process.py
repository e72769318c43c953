"""Gaussian processes and a time series, as a picture.

    python examples/gaussian_process.py [FILE.svg]

Gaussian processes learn numbers, answers and counts; a Kalman filter carries on a series. Numbers:
the mean, and bands of two standard deviations, the inner one without noise. Answers: the
probability of a yes, with a band for the probability itself. Counts: the mean, and where nine of
ten lie. The series has a trend, a season and a gap, and is forecast; its band holds 90 %. Takes a
few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.report.axes import Axis, limits
from bayesrule.app.report.svg import Plot
from bayesrule.graphical import GP, Kalman, Matern, Season, Trend

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.outer { fill: #2a78b5; opacity: .16; } .inner { fill: #2a78b5; opacity: .34; }
.mean { fill: none; stroke: #14507d; stroke-width: 2; } .data { fill: #222; stroke: none; }
"""
WIDTH, HEIGHT = 430.0, 270.0
GRID = torch.linspace(0.0, 10.0, 200, dtype=torch.float64)[:, None]


class Panel(NamedTuple):
    """Points, a mean, and bands drawn on top of each other."""

    title: str
    points: tuple[Tensor, Tensor]
    at: Tensor
    mean: Tensor
    bands: dict[str, tuple[Tensor, Tensor]]

    def render(self) -> str:
        """As svg."""
        values = [self.points[1][~self.points[1].isnan()], self.mean]
        edges = [edge for band in self.bands.values() for edge in band]
        across = Axis("x", float(self.at.min()), float(self.at.max()))
        low, high = limits(*(part.numpy() for part in (*values, *edges)))
        plot = Plot(across, Axis("", low, high), self.title, width=WIDTH, height=HEIGHT)
        for kind, (under, over) in self.bands.items():
            plot.band(self.at.numpy(), under.numpy(), over.numpy(), kind=kind)
        plot.line(self.at.numpy(), self.mean.numpy(), kind="mean")
        there = ~self.points[1].isnan()
        x, y = (part[there].numpy() for part in self.points)
        plot.points(x, y, kind="data", radius=2.0)
        return f'{plot.render()}<text class="title" x="40" y="16">{self.title}</text>'


def curve(x: Tensor) -> Tensor:
    """The function to learn."""
    return torch.sin(1.5 * x) + 0.2 * x - 1.0


def places(num: int) -> tuple[Tensor, torch.Generator]:
    """Inputs with a gap between 4 and 6, and the generator that drew them."""
    generator = torch.Generator().manual_seed(0)
    x = 8.0 * torch.rand(num, generator=generator, dtype=torch.float64)
    return torch.where(x > 4.0, x + 2.0, x), generator


def around(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Two standard deviations on each side of the mean."""
    return mean - 2.0 * variance.sqrt(), mean + 2.0 * variance.sqrt()


def numbers(num: int) -> Panel:
    """Exact regression; noise and kernel parameters maximise the evidence."""
    x, generator = places(num)
    y = curve(x) + 0.2 * torch.randn(num, generator=generator, dtype=torch.float64)
    model = GP(kernel=Matern()).fit(x[:, None], y)
    p = model.predict(GRID)
    bands = {"outer": around(p.mean, p.variance), "inner": around(p.mean, p.epistemic)}
    return Panel(f"numbers: noise {model.noise_:.2f}", (x, y), GRID[:, 0], p.mean, bands)


def answers(num: int) -> Panel:
    """Yes or no: a Gaussian site, moved by the learning rule, stands in for each answer."""
    x, generator = places(num)
    y = torch.bernoulli((3.0 * curve(x)).sigmoid(), generator=generator)
    p = GP(kernel=Matern(), likelihood=br.BernoulliLikelihood()).fit(x[:, None], y).predict(GRID)
    low, high = (edge.clamp(0.0, 1.0) for edge in around(p.mean, p.epistemic))
    return Panel("answers", (x, y), GRID[:, 0], p.mean, {"inner": (low, high)})


def counts(num: int) -> Panel:
    """Counts whose rate is the exponential of the process."""
    x, generator = places(num)
    y = torch.poisson(torch.exp(1.0 + curve(x)), generator=generator)
    p = GP(kernel=Matern(), likelihood=br.PoissonLikelihood()).fit(x[:, None], y).predict(GRID)
    return Panel("counts", (x, y), GRID[:, 0], p.mean, {"outer": p.interval(0.9)})


def series(steps: int = 96, ahead: int = 36) -> Panel:
    """A series with a trend, a season of 12 steps and a gap, and its forecast."""
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(steps, dtype=torch.float64)
    y = 0.05 * t + torch.sin(2.0 * torch.pi * t / 12.0)
    y = y + 0.3 * torch.randn(steps, generator=generator, dtype=torch.float64)
    y[40:58] = torch.nan
    model = Kalman(parts=(Trend(), Season(period=12.0))).fit(y)
    parts = model.smooth(), model.predict(ahead)
    low, high = (torch.cat(edges) for edges in zip(*(p.interval(0.9) for p in parts), strict=True))
    at, mean = torch.arange(steps + ahead).double(), torch.cat([p.mean for p in parts])
    return Panel(f"a series, {ahead} steps ahead", (t, y), at, mean, {"outer": (low, high)})


def panels(num: int) -> Iterator[Panel]:
    """All four."""
    yield numbers(num)
    yield answers(num)
    yield counts(num)
    yield series()


def picture(num: int = 60) -> str:
    """All panels, two in a row."""
    drawn = []
    for number, one in enumerate(panels(num)):
        place = f'x="{number % 2 * WIDTH}" y="{number // 2 * HEIGHT}"'
        drawn.append(f'<svg {place} width="{WIDTH}" height="{HEIGHT}">{one.render()}</svg>')
    size = f'width="{2 * WIDTH}" height="{2 * HEIGHT}" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
