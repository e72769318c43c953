"""Continual learning: the posterior of earlier data is the prior of later data.

    python examples/continual.py [FILE.svg]

A curve arrives in three parts, and each part is gone when the next one comes. Above, training goes
on from the last net (`br.map`), and the first parts are forgotten. Below, `br.noisy_full` learns a
full Gaussian over the weights from each part, which becomes the prior of the next:
`prior=run.state.posterior`. Dark points are those that are trained on, pale ones those that are
gone. The number is the error of the mean over all parts so far. Needs matplotlib; takes a few
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import bayesrule as br
from bayesrule.training.models import mlp

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
PARTS, NUM, NOISE = ((-3.0, -1.2), (-0.8, 0.8), (1.2, 3.0)), 30, 0.1
GRID = torch.linspace(-3.5, 3.5, 100).unsqueeze(1)


def curve(x: torch.Tensor) -> torch.Tensor:
    """The function to learn."""
    return torch.sin(2.0 * x) + 0.3 * x


def parts() -> list[br.types.Batch]:
    """Thirty points of each part."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.empty(NUM, 1).uniform_(a, b, generator=generator) for a, b in PARTS]
    return [(x, curve(x) + NOISE * torch.randn(x.shape, generator=generator)) for x in xs]


def forgetting(epochs: int) -> Iterator[br.training.Run]:
    """The same net, trained on each part in turn."""
    torch.manual_seed(0)
    net, state = mlp(1, 1, hidden=(30,), activation=nn.Tanh), None
    for part in parts():
        learner = br.map(net, br.GaussianLikelihood(noise=NOISE), num_data=NUM, learning_rate=0.01)
        run = br.fit(learner, part, epochs=epochs, batch_size=NUM, state=state, progress=False)
        state = run.state
        yield run


def remembering(epochs: int) -> Iterator[br.training.Run]:
    """Each part's prior is the posterior of all earlier parts."""
    torch.manual_seed(0)
    net = mlp(1, 1, hidden=(30,), activation=nn.Tanh)
    earlier: dict[str, Any] = {}
    for part in parts():
        likelihood = br.GaussianLikelihood(noise=NOISE)
        learner = br.noisy_full(net, likelihood, num_data=NUM, temperature=1.0, **earlier)
        run = br.fit(learner, part, epochs=epochs, batch_size=NUM, progress=False)
        earlier = {"prior": run.state.posterior}
        yield run


def panel(axis: Axes, run: br.training.Run, number: int) -> None:
    """The posterior after one part, and the data so far."""
    p = run.predict(GRID)
    mean, reach = p.mean[:, 0], 2.0 * p.epistemic[:, 0].sqrt()
    axis.fill_between(GRID[:, 0], mean - reach, mean + reach, alpha=0.25, linewidth=0)
    axis.plot(GRID[:, 0], mean)
    for k, (x, y) in enumerate(parts()[: number + 1]):
        axis.plot(x, y, ".", color="#222222" if k == number else "#aaaaaa", markersize=4)
    x = torch.cat([x for x, _ in parts()[: number + 1]])
    error = float((run.predict(x).mean - curve(x)).square().mean().sqrt())
    axis.set(title=f"after part {number + 1}: error {error:.2f}", ylim=(-3.0, 3.0))


def picture(epochs: int = 500) -> Figure:
    """Two rows, a column for each part."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5), sharex=True, sharey=True)
    for row, runs in zip(axes, (forgetting(epochs), remembering(epochs)), strict=True):
        for number, (axis, run) in enumerate(zip(row, runs, strict=True)):
            panel(axis, run, number)
    axes[0, 0].set_ylabel("map, training goes on")
    axes[1, 0].set_ylabel("noisy_full, prior = posterior")
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
