"""The nets of the k-tied paper: data, settings and published figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from bayesrule.likelihoods import BernoulliLikelihood, CategoricalLikelihood, Likelihood
from benchmarks.data import cifar10, mnist
from benchmarks.data.reviews import reviews
from benchmarks.images.tagi import split
from benchmarks.models import review_lstm, tied_cnn, tied_mlp

Data = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and targets to learn from, then those to test with."""


@dataclass(frozen=True)
class Task:
    """A net of the paper; `tied` names the weights that are tied, `known` the point estimates.

    The learning rate rises over the share `warmup` of all steps and falls as a cosine; the KL's
    weight rises over the share `annealing`. `published` has −ELBO, NLL, accuracy and thousands of
    parameters by method.
    """

    title: str
    data: Callable[[str, int | None], Data]
    model: Callable[[], nn.Module]
    likelihood: Likelihood
    tied: tuple[str, ...]
    measured: str
    epochs: int
    prior_precision: float
    published: dict[str, tuple[float, float, float, float]]
    known: tuple[str, ...] = ()
    batch_size: int = 1024
    learning_rate: float = 1e-4
    warmup: float = 0.1
    annealing: float = 1 / 3
    scale_multiplier: float = 10.0
    spread: float = 0.03


def _mnist(device: str, num: int | None) -> Data:
    found = mnist().floats()
    parts = found.x_train[:num], found.y_train[:num], found.x_test, found.y_test
    x, y, x_test, y_test = (part.to(device) for part in parts)
    return x, y, x_test, y_test


def _cifar(device: str, num: int | None) -> Data:
    x, y, x_test, y_test = split(cifar10(), device, 0, num)
    return x, y, x_test, y_test


def _reviews(device: str, num: int | None) -> Data:
    x, y, x_test, y_test = reviews(device=device)
    return x[:num], y[:num], x_test[:num], y_test[:num]


TASKS = {
    "mnist-tied": Task(
        "MNIST, 784-400-400-10",
        _mnist,
        tied_mlp,
        CategoricalLikelihood(),
        ("1.weight", "3.weight", "5.weight"),
        "3.weight*",
        1000,
        100.0,
        {
            "mean_field": (0.501, 0.133, 96.8, 957),
            "1-tied": (0.539, 0.155, 96.1, 482),
            "2-tied": (0.520, 0.129, 96.8, 484),
            "3-tied": (0.497, 0.120, 96.9, 486),
        },
        learning_rate=5e-4,
        # Slow at first, so that gradients have a direction in the steps where they are measured.
        warmup=0.3,
        annealing=0.2667,
        scale_multiplier=3.0,
    ),
    "cifar10-tied": Task(
        "CIFAR-10, 5×5×32, 5×5×64, 512",
        _cifar,
        lambda: tied_cnn(classes=10),
        CategoricalLikelihood(),
        ("7.weight", "9.weight"),
        "7.weight*",
        100,
        100.0,
        {},
        batch_size=512,
        learning_rate=5e-4,
        scale_multiplier=3.0,
    ),
    "imdb-tied": Task(
        "IMDB, LSTM 128",
        _reviews,
        review_lstm,
        BernoulliLikelihood(),
        ("1.weight_ih_l0", "1.weight_hh_l0"),
        "1.weight_hh_l0*",
        15,
        100.0,
        {
            "mean_field": (0.538, 0.478, 79.5, 2823),
            "1-tied": (0.592, 0.512, 77.6, 2693),
            "2-tied": (0.560, 0.484, 78.2, 2694),
            "3-tied": (0.550, 0.491, 78.8, 2695),
        },
        known=("0.weight", "1.bias_ih_l0", "2.weight", "2.bias"),
        batch_size=128,
        learning_rate=1e-3,
    ),
}
