"""The nets of the Variational Laplace paper: data, settings and published figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from bayesrule.bench.models import preact_resnet18
from bayesrule.data import cifar10, fashion_mnist
from bayesrule.data.images import Images


@dataclass(frozen=True)
class Task:
    """A net on a set of images, and how every method is trained on it.

    `published` has the paper's figures by method and way of predicting: NLL, accuracy in percent
    and calibration error.
    """

    title: str
    data: Callable[[], Images]
    model: Callable[[], nn.Module]
    epochs: int
    learning_rate: float
    prior_precision: float
    batch_size: int = 128
    augmented: bool = True
    published: dict[str, tuple[float, float, float]] = field(default_factory=dict)


TASKS = {
    "fashion-preact": Task(
        "Fashion-MNIST, PreactResNet-18 with softplus",
        fashion_mnist,
        lambda: preact_resnet18(channels=1),
        epochs=30,
        learning_rate=1e-3,
        prior_precision=100.0,
        published={
            "variational_laplace, mean": (0.16, 94.6, 0.010),
            "mean_field, mean": (0.23, 94.0, 0.034),
            "mean_field, 10 draws": (0.29, 93.6, 0.016),
            "map, mean": (0.29, 93.6, 0.096),
        },
    ),
    "cifar10-preact": Task(
        "CIFAR-10, PreactResNet-18 with softplus",
        cifar10,
        preact_resnet18,
        epochs=50,
        learning_rate=1e-3,
        prior_precision=100.0,
        published={
            "variational_laplace, mean": (0.23, 92.4, 0.017),
            "mean_field, mean": (0.37, 91.1, 0.053),
            "mean_field, 10 draws": (0.35, 90.2, 0.044),
            "map, mean": (0.43, 90.8, 0.058),
        },
    ),
}
