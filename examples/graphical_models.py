"""A mixture of Gaussians and a hidden Markov model, as a picture.

    python examples/graphical_models.py [FILE.svg]

Left: variational Bayes fits six Gaussians to three clouds of points. It empties the components that
nobody needs; the ellipses (two standard deviations) are those that are left. Right: a series that
switches between three levels, with gaps. Grey: the expected level under the hidden Markov model,
also where nothing was seen. Takes a few seconds.
"""

from __future__ import annotations

import math

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
.row { fill: #14507d; opacity: 0.5; } .ellipse { fill: none; stroke: #d1301f; stroke-width: 2; }
.level { fill: none; stroke: #777; stroke-width: 3; } .gap { fill: #f2b134; opacity: 0.35; }
"""
SIZE, HEAD, EDGE = 400.0, 26.0, 6.0
LEVELS = (-3.0, 0.0, 3.0)


def clouds(num: int = 300) -> Tensor:
    """Three clouds of points, one of them long and narrow."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(num, 2, generator=generator, dtype=torch.float64)
    roots = torch.tensor(
        [[[0.6, 0.0], [0.0, 0.6]], [[1.5, 1.2], [0.0, 0.4]], [[0.4, 0.0], [0.0, 1.2]]]
    )
    centres = torch.tensor([[-3.0, 3.0], [0.0, -2.0], [3.5, 2.0]])
    which = torch.arange(num) % 3
    spread = (noise.unsqueeze(1) @ roots.double()[which]).squeeze(1)
    return centres.double()[which] + spread


def series(num: int = 240) -> Tensor:
    """A series of three alternating levels, (num, 1), with two gaps."""
    generator = torch.Generator().manual_seed(1)
    level = torch.tensor(LEVELS, dtype=torch.float64)[torch.arange(num) // 40 % 3]
    values = level + 0.7 * torch.randn(num, generator=generator, dtype=torch.float64)
    values[60:75] = values[170:180] = math.nan
    return values.unsqueeze(1)


def mixture(passes: int) -> br.graphical.GaussianMixture:
    """Six components, of which three are needed."""
    how = br.graphical.VB(passes=passes)
    return br.graphical.GaussianMixture(components=6, inference=how).fit(clouds())


def chain(passes: int) -> br.graphical.HMM:
    """A hidden Markov model of three states."""
    how = br.graphical.VB(passes=passes)
    return br.graphical.HMM(states=3, inference=how).fit(series())


def clusters(model: br.graphical.GaussianMixture) -> Plot:
    """The points, and an ellipse for each component that was not emptied."""
    plot = Plot(
        Axis("x₁", -EDGE, EDGE), Axis("x₂", -EDGE, EDGE), "clusters", width=SIZE, height=SIZE
    )
    plot.points(*clouds().T.numpy(), kind="row", radius=2.0)
    angles = torch.linspace(0.0, 2.0 * math.pi, 61, dtype=torch.float64)
    circle = 2.0 * torch.stack([angles.cos(), angles.sin()], 1)
    for k in (model.weights_ > 0.01).nonzero()[:, 0].tolist():
        edge = model.means_[k] + circle @ torch.linalg.cholesky(model.covariances_[k]).T
        plot.line(*edge.T.numpy(), kind="ellipse")
    return plot


def states(model: br.graphical.HMM) -> Plot:
    """The series, its gaps, and the expected level of each step."""
    values = series()
    steps = torch.arange(len(values), dtype=torch.float64)
    plot = Plot(
        Axis("step", 0.0, len(values)), Axis("y", -EDGE, EDGE), "states", width=SIZE, height=SIZE
    )
    for gap in values[:, 0].isnan().nonzero()[:, 0].tolist():
        plot.box((gap - 0.5, gap + 0.5), (-EDGE, EDGE), kind="gap")
    plot.points(steps.numpy(), values[:, 0].numpy(), kind="row", radius=2.0)
    level = model.predict_proba(values) @ model.means_
    plot.line(steps.numpy(), level[:, 0].numpy(), kind="level")
    return plot


def picture(passes: int = 1000) -> str:
    """Both panels."""
    fitted, switching = mixture(passes), chain(passes)
    used = int((fitted.weights_ > 0.01).sum())
    titles = f"mixture: {used} of 6 components", f"states: {switching.states} of the series"
    panels = []
    for number, (title, plot) in enumerate(
        zip(titles, (clusters(fitted), states(switching)), strict=True)
    ):
        drawn = f'<svg y="{HEAD}" width="{SIZE}" height="{SIZE}">{plot.render()}</svg>'
        place = f'x="{number * SIZE}" y="0" width="{SIZE}" height="{SIZE + HEAD}"'
        head = f'<text class="title" x="40" y="18">{title}</text>'
        panels.append(f"<svg {place}>{head}{drawn}</svg>")
    box = f"{2 * SIZE} {SIZE + HEAD}"
    size = f'width="{2 * SIZE}" height="{SIZE + HEAD}" viewBox="0 0 {box}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
