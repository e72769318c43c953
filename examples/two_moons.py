"""A net of binary weights on two moons: its prediction over the whole plane, as a picture.

    python examples/two_moons.py [FILE.svg]

Each of the net's 4,128 weights is −1 or +1, with a probability that `bayesbinn` learns by natural
gradients. Left: the probability of each class over the plane, averaged over 100 draws of the
weights; where it is pale, the net does not know. Right: the part of that uncertainty that more data
would remove, the mutual information between weights and class: least along the moons, more on the
border between them, most away from all points. Takes a few seconds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot

LEVELS = 12
SHADES = "".join(f".l{i} {{ stroke-opacity: {i / LEVELS:.2f}; }} " for i in range(LEVELS + 1))
STYLE = f"""
svg {{ font: 13px system-ui, sans-serif; }} text {{ fill: #444; }}
.title {{ font-weight: 600; fill: #111; }} .grid {{ stroke: none; fill: none; }}
.notch, .base {{ stroke: #999; fill: none; }} .tick.y {{ text-anchor: end; }}
.tick.x {{ text-anchor: middle; }} .axis-label.x {{ text-anchor: end; }}
.upper {{ stroke: #2a78b5; }} .lower {{ stroke: #d9822b; }} .unknown {{ stroke: #6a3d9a; }}
.of-upper {{ fill: #14507d; stroke: white; }} .of-lower {{ fill: #8a4b0f; stroke: white; }}
{SHADES}
"""
WIDTH, HEIGHT, HEAD = 430.0, 330.0, 26.0
COLUMNS, ROWS = 48, 40
NUM, EPOCHS = 200, 1500


class Waves(nn.Module):
    """Fixed random features of the plane: `√2 cos(x W + b)`.

    Binary weights alone could only distinguish four directions of the plane.
    """

    def __init__(self, num: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("frequency", torch.randn(2, num, generator=generator) / 0.7)
        self.register_buffer("phase", 2.0 * math.pi * torch.rand(num, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(2.0) * torch.cos(x @ self.frequency + self.phase)


class Scaled(nn.Linear):
    """A linear layer whose sums of ±1 weights are rescaled."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (3.0 / math.sqrt(self.in_features))


def data() -> br.types.Batch:
    """Two interlocking, noisy half circles, and the class of each point."""
    generator = torch.Generator().manual_seed(0)
    angle = math.pi * torch.rand(NUM, 1, generator=generator)
    y = (torch.arange(NUM) % 2).float().unsqueeze(1)
    upper = torch.cat([angle.cos() - 0.5, angle.sin() - 0.25], 1)
    x = torch.where(y > 0, upper, -upper)
    return 1.5 * x + 0.12 * torch.randn(NUM, 2, generator=generator), y


def learned(batch: br.types.Batch, epochs: int) -> br.training.Run:
    """The trained net, two layers of binary weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            Waves(128), Scaled(128, 32, bias=False), nn.Tanh(), Scaled(32, 1, bias=False)
        )
    options = {"draws": 4, "temperature": 0.3, "learning_rate": 0.001}  # constant
    learner = br.bayesbinn(model, br.BernoulliLikelihood(), num_data=NUM, **options)
    return br.fit(learner, batch, epochs=epochs, batch_size=NUM)


def panel(title: str, shades: dict[str, Tensor], batch: br.types.Batch) -> str:
    """The plane in shades from 0 to 1, each (columns · rows,), and the points."""
    across, up = Axis("", -3.6, 3.6), Axis("", -3.0, 3.0)
    plot = Plot(across, up, title, width=WIDTH, height=HEIGHT - HEAD)
    x, y = places().T
    half, wide = 3.0 / ROWS, plot.inner[0] / COLUMNS + 0.3
    for kind, shade in shades.items():
        level = (LEVELS * shade).round()
        for i in range(1, LEVELS + 1):
            at = level == i
            cells = x[at].numpy(), (y[at] - half).numpy(), (y[at] + half).numpy()
            plot.strokes(*cells, kind=f"{kind} l{i}", wide=wide)
    for kind, own in (("of-upper", batch[1] > 0), ("of-lower", batch[1] == 0)):
        points = batch[0][own[:, 0]].T.numpy()
        plot.points(*points, kind=kind, radius=2.6)
    drawn = f'<svg y="{HEAD}" width="{WIDTH}" height="{HEIGHT - HEAD}">{plot.render()}</svg>'
    return f'<text class="title" x="{plot.left}" y="20">{title}</text>{drawn}'


def places() -> Tensor:
    """The middles of the cells, (columns · rows, 2)."""
    x, y = (torch.arange(num) * 2.0 + 1.0 - num for num in (COLUMNS, ROWS))
    return torch.cartesian_prod(3.6 * x / COLUMNS, 3.0 * y / ROWS)


def picture(epochs: int = EPOCHS) -> str:
    """Both panels."""
    batch = data()
    p = learned(batch, epochs).predict(places(), br.Draws(100))
    sure, doubt = 2.0 * p.mean[:, 0] - 1.0, p.mutual_information / math.log(2.0)
    panels = (
        panel("probability", {"upper": sure.clamp_min(0), "lower": -sure.clamp_max(0)}, batch),
        panel("doubt that more data would remove", {"unknown": doubt / doubt.max()}, batch),
    )
    body = "".join(
        f'<svg x="{WIDTH * i}" y="0" width="{WIDTH}" height="{HEIGHT}">{drawn}</svg>'
        for i, drawn in enumerate(panels)
    )
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
