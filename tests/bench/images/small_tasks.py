"""Tiny tasks that stand in for the papers' nets."""

from __future__ import annotations

import torch
from torch import Generator, nn

from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.tensors.network import forked_randomness
from bayesrule.training.models import mlp
from benchmarks.data.images import Images
from benchmarks.images import noisy_tasks
from benchmarks.images.tied_tasks import Data
from benchmarks.images.tied_tasks import Task as TiedTask
from benchmarks.images.variational_tasks import Task


def stripes() -> Images:
    """Small images with a bright column that tells the class."""
    generator = Generator().manual_seed(0)
    y = torch.randint(0, 3, (400,), generator=generator)
    x = 0.3 * torch.randn(400, 1, 6, 6, generator=generator)
    x[torch.arange(400), 0, :, 2 * y] += 1.0
    return Images("stripes", x[:300], y[:300], x[300:], y[300:], ("a", "b", "c"))


def _net() -> nn.Module:
    with forked_randomness(torch.device("cpu"), 0):
        convolution = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Softplus())
        return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(48, 3))


def preact() -> Task:
    """A convolution with batch norm on stripes, in place of a residual net."""
    published = {"map, mean": (0.5, 90.0, 0.1), "mean_field, 10 draws": (0.4, 91.0, 0.05)}
    return Task("Stripes", stripes, _net, 2, 1e-2, 10.0, 25, False, published)


def noisy() -> Task:
    """The same net and images for noisy natural gradients and plain optimisers."""
    kfac = {"stats_every": 1, "inverse_every": 5, "initial_curvature": 0.1}
    return Task(
        *("Noisy stripes", stripes, _net, 2, 1e-2, 10.0, 25, False),
        methods=tuple(noisy_tasks.METHODS),
        temperatures=(0.5, 0.1),
        own={"sgd": {"learning_rate": 0.05}, "noisy_kfac": kfac},
    )


def _rows(device: str, num: int | None) -> Data:
    found = stripes().floats()
    x, x_test = (part.flatten(1) for part in (found.x_train, found.x_test))
    parts = x[:num], found.y_train[:num], x_test, found.y_test
    x, y, x_test, y_test = (part.to(device) for part in parts)
    return x, y, x_test, y_test


def tied() -> TiedTask:
    """Two hidden layers on stripes."""
    return TiedTask(
        *("Striped rows", _rows, lambda: mlp(36, 3, (8, 8)), CategoricalLikelihood()),
        *(("0.weight", "2.weight"), "2.weight*", 2, 10.0),
        {"mean_field": (0.5, 0.4, 95.0, 1)},
        batch_size=25,
        learning_rate=1e-2,
    )
