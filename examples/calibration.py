"""How often is a net right that says 90 %? Predictions for digits, some with wrong labels.

    python examples/calibration.py [FILE.svg]

In scikit-learn's digits a quarter of all labels, in training and test, is replaced by a random
other one, so nobody can be right more often than three times in four. On the diagonal a net is
right as often as it says; below the diagonal it is too sure. The area of a point is the share of
test images in its bin. Where weights outnumber the data, `ivon` and its relatives take a
temperature below 1, which lets them learn wrong labels by heart. At temperature 1 `ivon` is unsure
and learns little here; held-out rows (`choose=`) find what is best in between. Needs scikit-learn
and matplotlib; takes about fifteen seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import bayesrule as br
from bayesrule.training.models import mlp

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
NUM, WRONG = 600, 0.25


def data() -> tuple[br.types.Batch, br.types.Batch]:
    """600 images to train on; the others are for testing."""
    generator = torch.Generator().manual_seed(0)
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=generator)
    x, y = pixels[order].float() / 8.0 - 1.0, labels[order]
    wrong = torch.rand(len(y), generator=generator) < WRONG
    y = torch.where(wrong, (y + torch.randint(1, 10, y.shape, generator=generator)) % 10, y)
    return (x[:NUM], y[:NUM]), (x[NUM:], y[NUM:])


def learners() -> dict[str, br.Learner]:
    """Three methods on nets of 100 hidden units, one of them at several temperatures."""

    def made(method: Callable[..., br.Learner], **options: Any) -> br.Learner:
        torch.manual_seed(0)
        net = mlp(64, 10, hidden=(100,))
        return method(net, br.CategoricalLikelihood(), num_data=NUM, **options)

    return {
        "map": made(br.map),
        "laplace": made(br.laplace),
        "ivon, as it comes": made(br.ivon),
        "ivon, temperature 1": made(br.ivon, temperature=1.0),
        "ivon, chosen": made(br.ivon),
    }


def predictions(epochs: int) -> dict[str, torch.Tensor]:
    """Probabilities of the test images by each method."""
    train, (x, _) = data()
    probabilities = {}
    for name, learner in learners().items():
        choose = {"temperature": (1.0, 0.3, 0.1)} if name.endswith("chosen") else None
        run = br.fit(learner, train, epochs=epochs, choose=choose, progress=False)
        probabilities[name] = run.predict(x).probs
    return probabilities


def picture(epochs: int = 60) -> Figure:
    """A diagram for each method."""
    _, (_, y) = data()
    probabilities = predictions(epochs)
    figure, axes = plt.subplots(1, len(probabilities), figsize=(13, 3.4), sharey=True)
    for axis, (name, probs) in zip(axes, probabilities.items(), strict=True):
        bins = br.metrics.reliability(probs, y, bins=10)
        scores = (f(probs, y) for f in (br.metrics.accuracy, br.metrics.nll, br.metrics.ece))
        words = "accuracy {:.0%}, NLL {:.2f}, ECE {:.3f}".format(*map(float, scores))
        axis.set_title(f"{name}\n{words}", fontsize=8.5)
        axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
        area = 400.0 * bins.count / bins.count.sum()
        axis.scatter(bins.confidence, bins.accuracy, s=area + 4.0, clip_on=False)
        axis.set(xlabel="says", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes[0].set_ylabel("is right")
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
