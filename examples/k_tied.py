"""The standard deviations of a layer are close to rank one: spectra of a mean-field posterior.

    python examples/k_tied.py [FILE.svg]

A net of 64 hidden units learns scikit-learn's digits with a standard deviation for each weight.
Left: those of the first layer, a row for each unit. Middle: the same matrix cut to rank 2. Right:
the share of the squared matrix in its first ranks, beside that of the layer's means and that of a
matrix of the same entries in random order. Swiatkowski et al. (2020) tie the standard deviations to
such a rank from the start, which is `br.k_tied`. Needs scikit-learn and matplotlib; takes about ten
seconds.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

import bayesrule as br
from bayesrule.training.models import mlp

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
LAYER, RANKS = "0.weight", 10


def learned(epochs: int) -> br.posteriors.Posterior:
    """A posterior of independent weights."""
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    torch.manual_seed(0)
    learner = br.mean_field(
        mlp(64, 10, hidden=(64,)),
        br.CategoricalLikelihood(),
        num_data=len(labels),
        expectation=br.LocalDraws(),
        scale_multiplier=3.0,
    )
    batch = pixels.float() / 8.0 - 1.0, labels
    return br.fit(learner, batch, epochs=epochs, batch_size=64, progress=False).state.posterior


def explained(matrix: Tensor) -> Tensor:
    """The cumulative share of the squared matrix in its first ranks."""
    values = torch.linalg.svdvals(matrix.double()).square()
    return (values.cumsum(0) / values.sum())[:RANKS]


def picture(epochs: int = 60) -> Figure:
    """The matrix, its rank-2 approximation, and three spectra."""
    belief = learned(epochs)
    spectrum = br.predicting.spectrum(belief)[LAYER]
    std, cut = belief.variance()[LAYER].sqrt(), spectrum.truncated(2)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), width_ratios=(1, 1, 1.15))
    for axis, matrix, title in zip(axes, (std, cut), ("learned", "rank 2 of it"), strict=False):
        drawn = axis.imshow(matrix.numpy(), vmin=0.0, vmax=float(std.max()), cmap="Blues")
        axis.set(title=f"standard deviations, {title}", xlabel="pixel")
        figure.colorbar(drawn, ax=axis, shrink=0.8)
    axes[0].set_ylabel("unit")
    shuffled = std.flatten()[torch.randperm(std.numel())].view_as(std)
    ranks = range(1, RANKS + 1)
    for matrix, label in (
        (std, "standard deviations"),
        (shuffled, "the same in random order"),
        (belief.mean[LAYER], "means"),
    ):
        axes[2].plot(ranks, explained(matrix), marker="o", markersize=4, label=label)
    axes[2].set(title="explained by the first ranks", xlabel="rank", ylim=(0.0, 1.02))
    axes[2].legend()
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
