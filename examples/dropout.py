"""Dropout as a posterior for one curve, beside the same net without it, as a picture.

    python examples/dropout.py [FILE.svg]

Both nets are trained by Adam. With `dropout`, hidden units are dropped at random in training and in
predictions, so predictions differ most where there are no data. Dark: two epistemic standard
deviations, which more data would reduce; pale: with the noise of the data, too. Takes half a
minute.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot
from bayesrule.training.models import mlp

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.outer { fill: #2a78b5; opacity: .16; } .inner { fill: #2a78b5; opacity: .34; }
.mean { fill: none; stroke: #14507d; stroke-width: 2; } .data { fill: #222; stroke: none; }
"""
WIDTH, HEIGHT, NUM = 430.0, 270.0, 60


def data() -> br.types.Batch:
    """A noisy curve, observed in two places."""
    generator = torch.Generator().manual_seed(0)
    x = torch.empty(NUM, 1).uniform_(0.4, 1.6, generator=generator)
    x = torch.where(torch.arange(NUM)[:, None] < NUM // 2, -x, x)
    return x, torch.sin(3 * x) + 0.1 * torch.randn(NUM, 1, generator=generator)


def learners() -> dict[str, br.Learner]:
    """The same net with and without dropout."""
    likelihood = br.GaussianLikelihood(noise=0.1)

    def model() -> nn.Module:
        return mlp(1, 1, hidden=(100, 100))

    return {
        "adam: one net": br.adam(model(), likelihood, num_data=NUM),
        "dropout: units dropped at random": br.dropout(
            model(), likelihood, num_data=NUM, drop=0.05
        ),
    }


def panel(title: str, p: br.predicting.Prediction, grid: Tensor, batch: br.types.Batch) -> str:
    """One net: the mean, its epistemic standard deviations, and the noise."""
    plot = Plot(Axis("x", -3.0, 3.0), Axis("", -3.0, 3.0), title, width=WIDTH, height=HEIGHT)
    mean, at = p.mean[:, 0], grid[:, 0].numpy()
    for kind, variance in (("outer", p.variance), ("inner", p.epistemic)):
        reach = 2.0 * variance[:, 0].sqrt()
        plot.band(at, (mean - reach).numpy(), (mean + reach).numpy(), kind=kind)
    plot.line(at, mean.numpy(), kind="mean")
    plot.points(batch[0][:, 0].numpy(), batch[1][:, 0].numpy(), kind="data", radius=2.0)
    return f'{plot.render()}<text class="title" x="40" y="16">{title}</text>'


def picture(epochs: int = 1500) -> str:
    """Both panels."""
    batch, grid = data(), torch.linspace(-3.0, 3.0, 200).unsqueeze(1)
    panels = []
    for number, (title, learner) in enumerate(learners().items()):
        run = br.fit(learner, batch, epochs=epochs, batch_size=NUM, progress=False)
        place = f'x="{number * WIDTH}" y="0" width="{WIDTH}" height="{HEIGHT}"'
        panels.append(f"<svg {place}>{panel(title, run.predict(grid), grid, batch)}</svg>")
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
