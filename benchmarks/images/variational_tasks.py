"""The nets of the Variational Laplace paper: data, methods, settings and published figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.methods import map, mean_field, variational_laplace
from bayesrule.predicting.predict import How
from benchmarks.data import cifar10, fashion_mnist
from benchmarks.data.images import Images
from benchmarks.models import preact_resnet18

AT_MEAN: dict[str, How] = {"mean": AtMean()}
MEAN_AND_DRAWS: dict[str, How] = {**AT_MEAN, "10 draws": Draws(10)}


@dataclass(frozen=True)
class Method:
    """How a method is built, how it predicts, and which settings of trials it has.

    `settings` names fields of `variational.Trial`: a point estimate has no scales, and not every
    one has a temperature.
    """

    make: Callable[..., Learner]
    ways: dict[str, How]
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


METHODS = {
    "map": Method(map, AT_MEAN, ("temperature",)),
    "mean_field": Method(mean_field, MEAN_AND_DRAWS, ("temperature", "scale_multiplier")),
    "variational_laplace": Method(
        variational_laplace,
        AT_MEAN,
        ("temperature", "scale_multiplier"),
        # Second derivatives of batch norm are slow on a GPU, and a share of the batch is enough.
        {"difference": 3e-4, "share": 0.25},
    ),
}


@dataclass(frozen=True)
class Task:
    """A net on a set of images, and how each method trains on it.

    `published` has the paper's figures by method and way of predicting: NLL, accuracy in percent
    and calibration error; `source` says where they are from. `own` has options of single methods,
    by name; these come before those of the task. `half` says that a GPU trains it in bfloat16.
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
    methods: tuple[str, ...] = tuple(METHODS)
    temperatures: tuple[float, ...] = (1.0, 0.1)
    own: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str = ""
    half: bool = False


UNLU = (
    "The paper's figures, Unlu & Aitchison (2021), Table 1, are the best of all temperatures on "
    "the test images."
)
TASKS = {
    "fashion-preact": Task(
        "Fashion-MNIST, PreactResNet-18 with softplus",
        fashion_mnist,
        lambda: preact_resnet18(channels=1),
        epochs=100,
        learning_rate=1e-3,
        prior_precision=100.0,
        temperatures=(0.1, 0.02, 0.01, 0.003, 0.001),
        published={
            "variational_laplace, mean": (0.16, 94.6, 0.010),
            "mean_field, mean": (0.23, 94.0, 0.034),
            "mean_field, 10 draws": (0.29, 93.6, 0.016),
            "map, mean": (0.29, 93.6, 0.096),
        },
        source=UNLU,
        half=True,
    ),
    "cifar10-preact": Task(
        "CIFAR-10, PreactResNet-18 with softplus",
        cifar10,
        preact_resnet18,
        epochs=100,
        learning_rate=1e-3,
        prior_precision=100.0,
        temperatures=(0.1, 0.03, 0.005, 0.001),
        published={
            "variational_laplace, mean": (0.23, 92.4, 0.017),
            "mean_field, mean": (0.37, 91.1, 0.053),
            "mean_field, 10 draws": (0.35, 90.2, 0.044),
            "map, mean": (0.43, 90.8, 0.058),
        },
        source=UNLU,
        half=True,
    ),
}
