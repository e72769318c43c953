"""Posteriors that follow the ELBO's gradient: three of them on one curve, as a picture.

    python examples/variational.py [FILE.svg]

Each panel shows the same 60 noisy points, the predictive mean, and two bands of two standard
deviations: the inner one is epistemic (more data would reduce it), the outer one adds the noise of
the data. All methods have independent weights and train for the same number of steps. Those that
learn from draws predict by the average of 200 draws; Variational Laplace, which only evaluates the
loss at its mean, predicts by the net linearised there, and map at one point. Takes half a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot
from bayesrule.predicting.predict import How
from bayesrule.training.models import mlp

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.outer { fill: #2a78b5; opacity: .16; } .inner { fill: #2a78b5; opacity: .34; }
.mean { fill: none; stroke: #14507d; stroke-width: 2; } .data { fill: #222; stroke: none; }
"""
WIDTH, HEIGHT = 430.0, 270.0
CLUSTERS = ((-1.6, -0.6), (0.4, 1.4))
NUM, EPOCHS = 60, 2500


def data() -> br.types.Batch:
    """Two clusters of inputs with a gap between them, and noise of 0.1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.empty(30, 1).uniform_(a, b, generator=generator) for a, b in CLUSTERS])
    return x, torch.sin(3 * x) + 0.1 * torch.randn(NUM, 1, generator=generator)


def beliefs(epochs: int) -> dict[str, tuple[br.Learner, How]]:
    """Four learners on the same module, and how each predicts."""
    likelihood = br.GaussianLikelihood(noise=0.1)
    rate = br.schedules.cosine(1e-2, epochs)

    def learner(method: Callable[..., br.Learner], **options: Any) -> br.Learner:
        model = mlp(1, 1, hidden=(20, 20), activation=nn.Tanh)
        return method(model, likelihood, num_data=NUM, learning_rate=rate, **options)

    scales: dict[str, Any] = {
        "scale_multiplier": 3.0,
        # The KL's weight rises over the first half of the training.
        "kl_weight": br.schedules.linear(0.0, 1.0, max(epochs // 2, 1)),
    }
    drawn = {"expectation": br.LocalDraws(4), **scales}
    many = br.Draws(200)
    return {
        "mean_field: a standard deviation for each weight": (
            learner(br.mean_field, **drawn),
            many,
        ),
        "k_tied: standard deviations of rank 2": (learner(br.k_tied, rank=2, **drawn), many),
        "variational_laplace: no draws at all": (
            learner(br.variational_laplace, exact=True, **scales),
            br.Linearised(),
        ),
        "map: one best network": (learner(br.map), br.AtMean()),
    }


def panel(
    title: str, p: br.predicting.Prediction, grid: torch.Tensor, batch: br.types.Batch
) -> str:
    """One posterior."""
    x, y = Axis("x", -2.4, 2.2), Axis("", -3.0, 3.0)
    plot = Plot(x, y, title, width=WIDTH, height=HEIGHT)
    mean, at = p.mean[:, 0], grid[:, 0]
    for kind, variance in (("outer", p.variance), ("inner", p.epistemic)):
        reach = 2.0 * variance[:, 0].sqrt()
        plot.band(at.numpy(), (mean - reach).numpy(), (mean + reach).numpy(), kind=kind)
    plot.line(at.numpy(), mean.numpy(), kind="mean")
    points = [f"{a:.2f}, {b:.2f}" for a, b in zip(batch[0][:, 0], batch[1][:, 0], strict=True)]
    plot.points(batch[0][:, 0].numpy(), batch[1][:, 0].numpy(), points, kind="data", radius=2.0)
    return f'{plot.render()}<text class="title" x="40" y="16">{title}</text>'


def picture(epochs: int = EPOCHS) -> str:
    """All panels, two in a row."""
    batch, grid = data(), torch.linspace(-2.4, 2.2, 240).unsqueeze(1)
    panels = []
    for number, (title, (learner, how)) in enumerate(beliefs(epochs).items()):
        run = br.fit(learner, batch, epochs=epochs, batch_size=NUM)
        column, row = number % 2, number // 2
        place = f'x="{column * WIDTH}" y="{row * HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        drawn = panel(title, run.predict(grid, how=how), grid, batch)
        panels.append(f"<svg {place}>{drawn}</svg>")
    rows = math.ceil(len(panels) / 2)
    size = f'width="{2 * WIDTH}" height="{rows * HEIGHT}"'
    box = f'viewBox="0 0 {2 * WIDTH} {rows * HEIGHT}"'
    body = "".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
