"""Digits that a net has never seen: which methods notice?

    python examples/ood.py [FILE.svg]

Nets are trained on the digits 0 to 4 of scikit-learn and then shown all ten. The histograms show
the entropy of the prediction, for digits that the net knows and for those that it does not. AUROC
is the probability that an unknown digit has the higher entropy. The best single network already
separates most of them; posteriors over the weights do so better or worse, and the AUROC says how
much. Needs scikit-learn and matplotlib; takes about ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

import bayesrule as br
from bayesrule.training.models import mlp

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
KNOWN, NUM = 5, 500


def data() -> tuple[br.types.Batch, Tensor, Tensor]:
    """Digits 0 to 4 for training, more of them for testing, and the digits 5 to 9."""
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = pixels[order].float() / 8.0 - 1.0, labels[order]
    seen = y < KNOWN
    return (x[seen][:NUM], y[seen][:NUM]), x[seen][NUM:], x[~seen]


def learners() -> dict[str, br.Learner]:
    """Five methods on the same net."""

    def made(method: Callable[..., br.Learner], **options: Any) -> br.Learner:
        torch.manual_seed(0)
        net = mlp(64, KNOWN, hidden=(100,))
        return method(net, br.CategoricalLikelihood(), num_data=NUM, **options)

    return {
        "map": made(br.map),
        "dropout": made(br.dropout),
        "ivon": made(br.ivon),
        "ivon, T = 1": made(br.ivon, temperature=1.0),
        "laplace": made(br.laplace),
    }


def doubts(epochs: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The entropy of predictions for known and unknown digits, in nats."""
    train, known, unknown = data()
    runs = {
        name: br.fit(learner, train, epochs=epochs, progress=False)
        for name, learner in learners().items()
    }
    return {
        name: (run.predict(known).entropy, run.predict(unknown).entropy)
        for name, run in runs.items()
    }


def picture(epochs: int = 60) -> Figure:
    """Two histograms for each method."""
    entropies = doubts(epochs)
    figure, axes = plt.subplots(1, len(entropies), figsize=(13, 2.8), sharey=True)
    most = float(torch.tensor(KNOWN).log())
    for axis, (name, (known, unknown)) in zip(axes, entropies.items(), strict=True):
        bins = torch.linspace(0.0, most, 25).numpy()
        for values, label in ((known, "0 to 4, seen"), (unknown, "5 to 9, never seen")):
            axis.hist(values.numpy(), bins, density=True, alpha=0.6, label=label)
        axis.set_title(f"{name}: AUROC {float(br.metrics.auroc(known, unknown)):.3f}")
        axis.set(xlabel="entropy, nats", ylim=(0.0, 5.0))
    axes[0].set_ylabel("density (cut off)")
    axes[-1].legend(fontsize=8)
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
