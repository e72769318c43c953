"""What is learned does not depend on the units of the loss, nor on how rows are counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import bayesrule as br
from bayesrule.curvature import GGN, SquaredGradient
from bayesrule.methods import METHODS, Need, option_names, record
from bayesrule.types import Batch, Params

pytestmark = pytest.mark.usefixtures("double_precision")

# Squares of gradients are those of the loss squared, not of the loss: such curvatures have the
# right size for log-likelihoods in nats alone. sgd moves by gradients in the units of the loss.
# tagi conditions on targets whose density is normalised.
NOT_SCALED = {"sgd", "rmsprop", "adam", "vogn", "ogn", "noisy_adam", "dropout", "tagi"}
# Its covariance, about I/N, says nothing of the data.
NO_VARIANCE = {"map"}


@dataclass(frozen=True)
class Scaled(br.GaussianLikelihood):
    """`c log N(y | f, noise²)`: but for a constant, the density with the noise variance over c."""

    c: float = 1.0

    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        return self.c * super().log_prob(outputs, targets, state)

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        return self.c**0.5 * super().fisher_vectors(outputs, state)

    def sample(self, outputs: Tensor, state: Params, generator: Generator) -> Tensor:
        return outputs + (super().sample(outputs, state, generator) - outputs) / self.c**0.5


def data(seed: int = 0) -> Batch:
    """Twelve rows of a smooth function."""
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True).sin() + 0.3


def learned(
    name: str, likelihood: br.GaussianLikelihood, batch: Batch, temperature: float, **options: Any
) -> tuple[Params, Params]:
    """Means and variances after five steps on all data."""
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    model = nn.Linear(2, 1) if Need.LINEAR_MODEL in record(name).needs else deep
    size = len(batch[1])
    learner = METHODS[name](model, likelihood, num_data=size, temperature=temperature, **options)
    state = learner.init(seed=3)
    for _ in range(5):
        state, _ = learner.step(state, batch)
    posterior = learner.finish(state, [batch]).posterior
    return posterior.mean, posterior.variance()


def close(found: Params, expected: Params) -> None:
    """Equal but for what keeps optimisers from dividing by zero."""
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("c", [0.2, 7.0])
@pytest.mark.parametrize("name", [name for name in METHODS if name not in NOT_SCALED])
def test_a_scaled_loss_at_a_scaled_temperature_is_the_same(name: str, c: float) -> None:
    options: dict[str, Any] = {}
    if "kl_clip" in option_names(METHODS[name]):
        options["kl_clip"] = math.inf  # It is a number of nats.
    if name == "variational_laplace":
        options["exact"] = True  # The slope of squares at drawn targets is not that of the Fisher.
    mean, variance = learned(name, Scaled(noise=0.4), data(), 0.5, **options)
    scaled = Scaled(noise=0.4, c=c)
    other_mean, other_variance = learned(name, scaled, data(), 0.5 * c, **options)
    close(other_mean, mean)
    if name not in NO_VARIANCE:
        close(other_variance, variance)


def unsampled(name: str) -> dict[str, Any]:
    """Options with which nothing is drawn for single rows, whose copies would get other draws."""
    names, options = option_names(METHODS[name]), dict[str, Any]()
    if "initial_curvature" in names:
        options["initial_curvature"] = 1.5
    if name == "variational_laplace":
        options["exact"] = True
    if name.startswith("noisy"):
        # The square of a sum over rows counts copies as rows that agree by chance.
        options["curvature"] = SquaredGradient() if name == "noisy_adam" else GGN()
    return options


@pytest.mark.parametrize("name", METHODS)
def test_rows_twice_at_twice_the_temperature_are_the_same(name: str) -> None:
    x, y = data()
    likelihood, options = br.GaussianLikelihood(noise=0.4), unsampled(name)
    mean, variance = learned(name, likelihood, (x, y), 0.7, **options)
    twice = torch.cat([x, x]), torch.cat([y, y])
    other_mean, other_variance = learned(name, likelihood, twice, 1.4, **options)
    close(other_mean, mean)
    close(other_variance, variance)
