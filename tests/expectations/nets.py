"""Small modules with a belief over their weights, for draws that are made within the layers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from exact import flat, generator, mlp, randn
from torch import Tensor, nn

from bayesrule.curvature import Curvature, Here, Problem
from bayesrule.expectations import Expectation
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.matrices import Diagonal
from bayesrule.posteriors import MeanField
from bayesrule.posteriors.factorised import StdSlope
from bayesrule.tensors.network import Network, num_examples
from bayesrule.types import Local


class LastStep(nn.Module):
    """An LSTM and a linear layer on its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Function(nn.Module):
    """Any function of x and of a weight and a bias."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(randn(*shape)), nn.Parameter(randn(shape[0], seed=1))
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def _normalised() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(randn(4, seed=5))
    norm.running_var.copy_(randn(4, seed=6).exp())
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))


def _cnn(size: int) -> nn.Module:
    after = 3 * (size - 2) ** 2
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(after, 2))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(3, 4, 2), (3,)),
    "one position": (lambda: _cnn(3), (2, 3, 3)),
    "cnn": (lambda: _cnn(4), (2, 4, 4)),
    "batch norm": (_normalised, (3,)),
    "lstm": (LastStep, (3, 2)),
    "sequence": (lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten()),
                 (2, 2)),
}  # fmt: skip


def problem_of(model: nn.Module, x: Any, y: Tensor, *, training: bool = False) -> Problem:
    network = Network(model)
    noise = GaussianLikelihood(noise=1.0)
    return Problem(
        network,
        noise,
        {},
        network.buffers(),
        x,
        y,
        generator(),
        count=num_examples(x),
        training=training,
    )


def belief_of(problem: Problem, spread: float = 0.3) -> MeanField:
    mean = problem.network.params()
    scales = {k: math.log(spread) + 0.2 * randn(*v.shape, seed=9) for k, v in mean.items()}
    return MeanField(mean, scales)


def net(name: str, examples: int, copies: int = 1) -> tuple[Problem, MeanField]:
    torch.manual_seed(1)
    make, shape = NETS[name]
    x, y = randn(examples, *shape, seed=2), randn(examples, 2, seed=3)
    problem = problem_of(make(), x.repeat(copies, *[1] * len(shape)), y.repeat(copies, 1))
    return problem, belief_of(problem)


def each(problem: Problem, q: Any, how: Expectation, curvature: Curvature) -> list[Local]:
    points = how.points(q, generator(4))
    return [curvature.local(problem, Here(point, Diagonal(), q)) for point in points]


def slopes_of(problem: Problem, q: MeanField, how: Expectation, curvature: Curvature) -> Tensor:
    """Gradients in the mean and in the logarithm of the spread at each point, (K, 2 P)."""
    found = []
    for local in each(problem, q, how, curvature):
        assert local.curvature is not None
        bends = local.curvature.diagonal()
        known = isinstance(local.curvature, StdSlope)
        scales = {k: bends[k] * s * (1.0 if known else s) for k, s in q.std().items()}
        found.append(torch.cat([flat(local.gradient), flat(scales)]))
    return torch.stack(found)
