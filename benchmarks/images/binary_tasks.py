"""Binary weights on MNIST: the net of the BayesBiNN paper, and its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bayesrule.expectations import AtMode, Draws
from bayesrule.learner import Learner
from bayesrule.methods import bayesbinn, ste
from bayesrule.predicting.predict import How
from bayesrule.tensors.network import forked_randomness
from benchmarks.data import mnist
from benchmarks.images.variational_tasks import Method, Task


def binary_mlp(hidden: tuple[int, ...] = (2048, 2048, 2048), *, seed: int = 0) -> nn.Sequential:
    """784-2048-2048-2048-10 with ReLU, without biases; a batch norm that learns nothing after each.

    Meng, Bachmann & Khan (2020), appendix B; the last norm brings the sums to the scale of logits.
    """
    with forked_randomness(torch.get_default_device(), seed):
        layers, size = list[nn.Module]([nn.Flatten()]), 784
        for width in (*hidden, 10):
            linear = nn.Linear(size, width, bias=False)
            layers += [linear, nn.BatchNorm1d(width, affine=False), nn.ReLU()]
            size = width
        return nn.Sequential(*layers[:-1])


def without_precision(make: Callable[..., Learner]) -> Callable[..., Learner]:
    """Adapts a method of binary weights, which has no prior precision, to tasks that pass one."""

    def made(*given: Any, prior_precision: float, **options: Any) -> Learner:
        return make(*given, **options)

    return made


AT_SIGNS: dict[str, How] = {"signs": AtMode()}
METHODS = {
    "ste": Method(without_precision(ste), AT_SIGNS),
    "bayesbinn": Method(without_precision(bayesbinn), {**AT_SIGNS, "10 draws": Draws(10)}),
}

# First natural parameters and temperature of the draws are those of the paper: weights are as good
# as known, but for those that the data say nothing about.
PAPER: dict[str, Any] = {"sure": 10.0, "relaxation": 1e-10}
TASKS = {
    "mnist-binary": Task(
        "MNIST, 3×2048 binary weights",
        mnist,
        binary_mlp,
        epochs=50,
        learning_rate=1e-2,
        prior_precision=0.0,
        batch_size=100,
        augmented=False,
        methods=tuple(METHODS),
        temperatures=(1.0,),
        own={"ste": {"learning_rate": 0.1}, "bayesbinn": PAPER},
        source="BayesBiNN has 98.86 % after 500 epochs in Meng, Bachmann & Khan (2020).",
    ),
}
