"""Twelve nets on twelve data sets, trained together: each knows its own curve, and where it ends.

    python examples/many_nets.py [FILE.svg]

Each panel has its own data set, with its own frequency and its own stretch without data, and its
own net. `br.fit_many` trains them together, and each net ends as it would have alone. Bands are two
standard deviations, the inner one without the noise. Needs matplotlib; takes a few seconds.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import bayesrule as br
from bayesrule.training.models import mlp

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
SETS, NUM, NOISE = 12, 25, 0.1
GRID = torch.linspace(-2.5, 2.5, 50).unsqueeze(1)


def data() -> list[br.types.Batch]:
    """Waves observed left and right of a gap."""
    generator = torch.Generator().manual_seed(0)
    sets = []
    for k in range(SETS):
        middle = -1.0 + 2.0 * k / (SETS - 1)
        x = torch.empty(400, 1).uniform_(-2.0, 2.0, generator=generator)
        x = x[(x[:, 0] - middle).abs() > 0.5][:NUM]
        noise = NOISE * torch.randn(x.shape, generator=generator)
        sets.append((x, torch.sin((1.0 + 0.2 * k) * x) + noise))
    return sets


def build(x: Tensor, y: Tensor) -> br.Learner:
    """The learner of one data set."""
    net = mlp(1, 1, hidden=(30,), activation=nn.Tanh)
    likelihood = br.GaussianLikelihood(noise=NOISE)
    return br.laplace(net, likelihood, num_data=len(x), structure=br.Dense(), learning_rate=0.01)


def panel(axis: Axes, run: br.training.Run, batch: br.types.Batch) -> None:
    """One data set and the prediction of its net."""
    p = run.predict(GRID)
    at, mean = GRID[:, 0], p.mean[:, 0]
    for variance, alpha in ((p.variance, 0.15), (p.epistemic, 0.3)):
        reach = 2.0 * variance[:, 0].sqrt()
        axis.fill_between(at, mean - reach, mean + reach, alpha=alpha, color="#2a78b5", linewidth=0)
    axis.plot(at, mean)
    axis.plot(*batch, ".", color="#222222", markersize=3)
    axis.set(ylim=(-2.5, 2.5), xticks=(-2, 0, 2), yticks=(-2, 0, 2))


def picture(epochs: int = 1000) -> Figure:
    """A panel for each net."""
    sets = data()
    runs = br.fit_many(build, sets, epochs=epochs, batch_size=NUM, progress=False)
    figure, axes = plt.subplots(3, 4, figsize=(11, 6), sharex=True, sharey=True)
    for axis, run, batch in zip(axes.flat, runs, sets, strict=True):
        panel(axis, run, batch)
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
