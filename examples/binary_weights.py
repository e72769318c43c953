"""Nets of binary weights on a curve: what a posterior over the signs adds, as a picture.

    python examples/binary_weights.py [FILE.svg]

All weights are −1 or +1; biases are real numbers. The BayesBiNN paper uses Snelson's data, which do
not come with this library, so this is another noisy curve, observed in two places. Left:
`bayesbinn` learns a probability for each sign, so draws of the weights agree at the data and differ
away from them. Right: `ste`, the straight-through estimator, has a single net and no epistemic
uncertainty. Takes half a minute.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.outer { fill: #2a78b5; opacity: .16; } .inner { fill: #2a78b5; opacity: .34; }
.mean { fill: none; stroke: #14507d; stroke-width: 2; } .data { fill: #222; stroke: none; }
"""
WIDTH, HEIGHT, NOISE, NUM = 430.0, 270.0, 0.15, 100
SPANS = ((-2.5, -0.9, 40), (0.1, 2.3, 60))


class Waves(nn.Module):
    """Fixed random features of the line: `√2 cos(x w + b)`."""

    def __init__(self, num: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("frequency", torch.randn(1, num, generator=generator))
        self.register_buffer("phase", 2.0 * math.pi * torch.rand(num, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(2.0) * torch.cos(x @ self.frequency + self.phase)


class Scaled(nn.Linear):
    """A linear layer whose sums of ±1 weights are rescaled."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__(inputs, outputs)
        self.scale = scale / math.sqrt(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


def data() -> br.types.Batch:
    """A noisy curve, observed in two places."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.empty(num, 1).uniform_(a, b, generator=generator) for a, b, num in SPANS]
    x = torch.cat(parts)
    y = torch.sin(2.2 * x) + 0.4 * torch.cos(4.5 * x)
    return x, y + NOISE * torch.randn(x.shape, generator=generator)


def learners(steps: int) -> dict[str, br.Learner]:
    """Both methods on the same module."""

    def model() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(Waves(128), Scaled(128, 32, 3.0), nn.Tanh(), Scaled(32, 1, 2.0))

    likelihood = br.GaussianLikelihood(noise=NOISE)
    slower = br.schedules.cosine(1e-3, steps, final=1e-5)
    return {
        "bayesbinn: a probability of each sign": br.bayesbinn(
            model(), likelihood, num_data=NUM, real="*.bias", temperature=0.3,
            learning_rate=slower, draws=4,
        ),
        "ste: one net of signs": br.ste(
            model(), likelihood, num_data=NUM, real="*.bias",
            learning_rate=br.schedules.cosine(1e-4, steps, final=1e-6),
        ),
    }  # fmt: skip


def panel(title: str, p: br.predicting.Prediction, grid: Tensor, batch: br.types.Batch) -> str:
    """One method: the mean, and two standard deviations without and with the noise."""
    plot = Plot(Axis("x", -5.0, 5.0), Axis("", -4.0, 4.0), title, width=WIDTH, height=HEIGHT)
    mean, at = p.mean[:, 0], grid[:, 0].numpy()
    for kind, variance in (("outer", p.variance), ("inner", p.epistemic)):
        reach = 2.0 * variance[:, 0].sqrt()
        plot.band(at, (mean - reach).numpy(), (mean + reach).numpy(), kind=kind)
    plot.line(at, mean.numpy(), kind="mean")
    plot.points(batch[0][:, 0].numpy(), batch[1][:, 0].numpy(), kind="data", radius=2.0)
    return f'{plot.render()}<text class="title" x="40" y="16">{title}</text>'


def picture(steps: int = 2000) -> str:
    """Both panels."""
    batch, grid = data(), torch.linspace(-5.0, 5.0, 200).unsqueeze(1)
    panels = []
    for number, (title, learner) in enumerate(learners(steps).items()):
        run = br.fit(learner, batch, epochs=steps, batch_size=NUM, progress=False)
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
