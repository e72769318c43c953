"""Noisy natural gradients beside plain optimisers: nets, methods and settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from bayesrule.curvature import NoCurvature
from bayesrule.expectations import AtMean
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Isotropic
from bayesrule.methods import map, noisy_adam, noisy_kfac
from bayesrule.posteriors import GaussianFamily
from bayesrule.rules import Elbo, Velocity
from bayesrule.schedules import Schedule
from bayesrule.tensors.network import forked_randomness
from benchmarks.data import cifar10, fashion_mnist
from benchmarks.images.variational_tasks import AT_MEAN, MEAN_AND_DRAWS, Method, Task
from benchmarks.models import resnet18


def sgd(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: float | Schedule,
    momentum: float = 0.9,
    **settings: Any,
) -> Learner:
    """The most probable weights, by torch's SGD with momentum."""
    # In one kernel that needs no number from the device, so that steps on a GPU can be replayed.
    optimiser = partial(SGD, momentum=momentum, fused=True)
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Isotropic()),
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=Elbo(learning_rate, optimiser=optimiser),
        **settings,
    )


def tempered(make: Callable[..., Learner]) -> Callable[..., Learner]:
    """The method with the whole posterior at a temperature, the prior too.

    Temperature T then scales the standard deviations by √T around the same most probable weights,
    those of weight decay `prior_precision / num_data`. If only the likelihood were colder, the
    prior would lose its pull.
    """

    def made(*given: Any, temperature: float, prior_precision: float, **options: Any) -> Learner:
        colder = {"temperature": temperature, "prior_precision": prior_precision / temperature}
        return make(*given, **colder, **options)

    return made


METHODS = {
    "adam": Method(map, AT_MEAN),
    "sgd": Method(sgd, AT_MEAN),
    "noisy_adam": Method(tempered(noisy_adam), MEAN_AND_DRAWS, ("temperature",)),
    "noisy_kfac": Method(
        tempered(noisy_kfac), MEAN_AND_DRAWS, ("temperature",), {"momentum": Velocity(0.9)}
    ),
}


def small_cnn(*, seed: int = 0) -> nn.Sequential:
    """16, 32 and 64 kernels of 3×3 with max pooling, then 128 units, for 28×28 images."""
    with forked_randomness(torch.get_default_device(), seed):
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10)
        )


def _resnet18() -> nn.Sequential:
    with forked_randomness(torch.get_default_device(), 0):
        return resnet18()


# Chosen on held-out images of Fashion-MNIST; first steps are small while the curvature is a guess.
_KFAC = {
    "learning_rate": 0.01,
    "rate": 0.1,
    "initial_curvature": 0.1,
    "damping": 3e-3,
    "kl_clip": 5e-4,
}
TASKS = {
    "fashion-noisy": Task(
        "Fashion-MNIST, 16c3-32c3-64c3-fc128",
        fashion_mnist,
        small_cnn,
        epochs=20,
        learning_rate=1e-3,
        prior_precision=5.0,
        augmented=False,
        methods=tuple(METHODS),
        temperatures=(0.5, 0.3),
        own={
            "sgd": {"learning_rate": 0.03},
            "noisy_adam": {"learning_rate": 0.2, "rate": 0.01, "initial_curvature": 1e-3},
            "noisy_kfac": {**_KFAC, "inverse_every": 50},
        },
    ),
    "cifar10-noisy": Task(
        "CIFAR-10, ResNet-18",
        cifar10,
        _resnet18,
        epochs=15,
        learning_rate=1e-3,
        prior_precision=25.0,
        methods=tuple(METHODS),
        temperatures=(0.03, 0.01),
        own={
            "sgd": {"learning_rate": 0.1},
            "noisy_adam": {"learning_rate": 0.03, "rate": 0.01, "initial_curvature": 1e-3},
            # The clip is looser with batch norm, and roots of 4,608 inputs take long to find.
            "noisy_kfac": {
                **_KFAC,
                "learning_rate": 1e-3,
                "kl_clip": 1e-2,
                "inverse_every": 200,
            },
        },
    ),
}
